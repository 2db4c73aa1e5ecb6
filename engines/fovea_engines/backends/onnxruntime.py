"""Runs ONNX models unchanged with ONNX Runtime on CPU cores."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from fovea_engines.backends.backend import Backend, CompilePlan, OpenPlan
from fovea_engines.backends.cpu import CpuSession, load_layouts
from fovea_engines.repository.files import write_file, writing
from fovea_engines.session import NUMPY_NAMES, Array, TensorSpec
from fovea_preprocess.errors import InferenceFailed, InvalidModel, UnsupportedModel

_ENGINE_FILE = "model.onnx"

# Value of `TensorProto.BFLOAT16` in onnx.proto.
_BFLOAT16 = 16

# Operators that run a subgraph. With such an operator, the duration of a call depends on its
# values.
_BRANCHING = ("If", "Loop", "Scan", "SequenceMap")


class OnnxRuntimeBackend(Backend):
    """Runs ONNX files unchanged."""

    def compile(self, model: bytes | Path, folder: Path, plan: CompilePlan | None = None) -> Path:
        """Write the unchanged model as the engine file, and return the file's path."""
        engine = folder / _ENGINE_FILE
        if isinstance(model, bytes):
            write_file(engine, model)
        else:
            with writing(engine, model.stat().st_size):
                shutil.copyfile(model, engine)
        return engine

    def open(self, path: Path, plan: OpenPlan) -> CpuSession:
        """Load an ONNX file whose inputs and outputs are all tensors; see `open_session`.

        Raises:
            UnsupportedModel: an input or output is not a tensor, or has an unsupported element
                type.
        """
        wide, narrow = load_layouts(lambda width: _Layout(path, width), plan.cores, plan.parallel)
        return CpuSession(
            wide.inputs,
            wide.outputs,
            optional_inputs=wide.optional_inputs,
            wide=wide,
            narrow=narrow,
            max_batch=plan.max_batch,
            concurrency=plan.parallel,
            steady=not _branches(path),
        )


ONNXRUNTIME = OnnxRuntimeBackend(
    name="onnxruntime",
    distributions=("onnxruntime",),
    suffixes=(".onnx",),
    platform="onnxruntime_onnx",
    several_sizes=True,
)


def _branches(path: Path) -> bool:
    """Return whether the duration of a call may depend on the values of its inputs.

    The onnx package would load the whole model into memory, so this function searches the file for
    the bytes of the field `op_type` of a `NodeProto`. Weights that contain the same bytes also
    match.
    """
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as model:
        return any(model.find(bytes([0x22, len(kind)]) + kind.encode()) >= 0 for kind in _BRANCHING)


class _Layout:
    """One ONNX Runtime session with a fixed number of threads per call.

    Several calls may run in parallel.
    """

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        # Log only fatal errors. All other errors are raised, and the caller reports them.
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Memory patterns cost memory: each parallel caller keeps a block with the peak size of a
        # call, 30 MB for yolov8n.
        options.enable_mem_pattern = False
        # The arena would keep the peak memory of all outputs forever, without a gain in speed.
        # Calls without the arena take 0.99 (yolov8n) and 1.00 (yolox_nano) times as long as calls
        # with it (medians of interleaved pairs, one thread).
        options.enable_cpu_mem_arena = False
        # Waiting threads spin between the layers of a call, but not between calls. Waking sleeping
        # threads for each layer would slow down a single call. Threads that spin between calls
        # would take cores from other processes (benchmarks/neighbours.py).
        options.add_session_config_entry("session.force_spinning_stop", "1")
        errors = ort.capi.onnxruntime_pybind11_state
        self._failures = (
            errors.Fail,
            errors.InvalidArgument,
            errors.NotImplemented,
            errors.RuntimeException,
            # ONNX Runtime raises this error for output strings that are not UTF-8.
            UnicodeDecodeError,
        )
        try:
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except (
            errors.Fail,
            errors.InvalidGraph,
            errors.InvalidProtobuf,
            errors.InvalidArgument,
            errors.NoSuchFile,
            errors.NotImplemented,
            errors.RuntimeException,
        ) as error:
            raise InvalidModel(f"ONNX Runtime cannot load {path}: {error}") from error
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self.optional_inputs = tuple(
            _spec(node) for node in self._session.get_overridable_initializers()
        )
        self._names = [spec.name for spec in self.outputs]
        self._call = self._calls()

    def _calls(self) -> Callable[[Mapping[str, Array]], list[Array]]:
        tensors = (*self.inputs, *self.outputs, *self.optional_inputs)
        elements = {spec.dtype for spec in tensors}
        if elements >= {"object", "bfloat16"}:
            raise UnsupportedModel(
                "the model has tensors of strings and of bfloat16, but Fovea supports only one of "
                "these types in a model: export it without one"
            )
        if "object" in elements:
            return partial(_run_strings, self._session, self._names)
        if "bfloat16" in elements:
            return partial(_run_bfloat16, self._session, self.outputs)
        return partial(self._session.run, self._names)

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            results = self._call(feeds)
        except self._failures as error:
            raise InferenceFailed(f"ONNX Runtime failed on this batch: {error}") from error
        return dict(zip(self._names, results, strict=True))

    def rest(self) -> None:
        """Do nothing, because this layout keeps no working memory between calls."""


def _spec(node: Any) -> TensorSpec:
    if not node.type.startswith("tensor("):
        raise UnsupportedModel(f"{node.name!r} is a {node.type}; only tensors are supported")
    element = node.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    spec = TensorSpec(node.name, NUMPY_NAMES.get(element, element), shape)
    try:
        spec.numpy_dtype  # noqa: B018 - the property raises TypeError for unknown types
    except TypeError:
        raise UnsupportedModel(
            f"{node.name!r} has elements of type {element}, which NumPy does not support"
        ) from None
    return spec


def _run_strings(session: Any, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Run a batch with strings. The caller's arrays have `bytes`; ONNX Runtime needs `str`.

    The bytes are decoded as UTF-8. If some bytes of a call are not UTF-8, all strings of the call
    are decoded and encoded as Latin-1, with one character per byte. Models that move, join or
    compare strings then still work.
    """
    try:
        return _run_encoded(session, names, feeds, "utf-8")
    except UnicodeDecodeError:
        return _run_encoded(session, names, feeds, "latin-1")


def _run_encoded(
    session: Any, names: Sequence[str], feeds: Mapping[str, Array], encoding: str
) -> list[Array]:
    given = {
        name: _convert_strings(lambda e: e.decode(encoding), array) for name, array in feeds.items()
    }
    found = session.run(names, given)
    try:
        return [
            _convert_strings(lambda element: element.encode(encoding), array) for array in found
        ]
    except UnicodeEncodeError as error:
        raise InferenceFailed(
            f"the model combines its own text with strings that are not UTF-8 ({error}): send UTF-8"
        ) from error


def _convert_strings(convert: Any, array: Array) -> Array:
    """Apply `convert` to each string of an object array, and return other arrays unchanged."""
    if array.dtype != object:
        return array
    converted = np.empty(array.size, dtype=object)
    converted[:] = [convert(element) for element in array.ravel().tolist()]
    return converted.reshape(array.shape)


def _run_bfloat16(
    session: Any, outputs: Sequence[TensorSpec], feeds: Mapping[str, Array]
) -> list[Array]:
    """Run a batch with bfloat16 arrays. They have the dtype of the package ml_dtypes.

    NumPy has no bfloat16, so the arrays are passed as `OrtValue`, without a conversion to float32.
    """
    values = {name: _value(array) for name, array in feeds.items()}
    found = session.run_with_ort_values([spec.name for spec in outputs], values)
    return [_array(spec, value) for spec, value in zip(outputs, found, strict=True)]


def _value(array: Array) -> Any:
    from onnxruntime import OrtValue

    if array.dtype.name != "bfloat16":
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)


def _array(spec: TensorSpec, value: Any) -> Array:
    if spec.dtype != "bfloat16":
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    if not size:
        return np.empty(value.shape(), spec.numpy_dtype)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    # The copy is needed, because ONNX Runtime frees the memory together with `value`.
    return np.frombuffer(memory, spec.numpy_dtype).reshape(value.shape()).copy()
