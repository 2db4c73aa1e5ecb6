"""Runs models with OpenVINO on CPU cores."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from fovea_engines.backends.backend import Backend, CompilePlan, OpenPlan
from fovea_engines.backends.cpu import CpuSession, load_layouts
from fovea_engines.repository.figures import Precision
from fovea_engines.repository.files import writing
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import (
    BackendUnavailable,
    InferenceFailed,
    InvalidModel,
    UnsupportedModel,
)

_ENGINE_FILE = "model.xml"

# Operators that run a subgraph. With such an operator, the duration of a call depends on its
# values.
_BRANCHING = frozenset({"If", "Loop", "TensorIterator"})

# Estimated size of model.xml in bytes per operator. Real models have 470 to 500 bytes.
_XML_BYTES = 600

_FIRST_USE = Lock()


class OpenVinoBackend(Backend):
    """Compiles models to OpenVINO IR (model.xml and model.bin), and runs IR and ONNX files."""

    def compile(self, model: bytes | Path, folder: Path, plan: CompilePlan | None = None) -> Path:
        """Convert an ONNX model to OpenVINO IR, and return the path of model.xml.

        The weights keep their data type: the graph defines the precision of an engine, not the
        backend.
        """
        ov = _runtime()
        engine = folder / _ENGINE_FILE
        try:
            converted = ov.Core().read_model(model)
        except RuntimeError as error:
            raise InvalidModel(
                f"OpenVINO cannot convert the model: {_shorten_error(error)}"
            ) from error
        try:
            ov.save_model(converted, engine, compress_to_fp16=False)
        except RuntimeError as error:
            # OpenVINO's error has no reason. Writing a file of about the same size raises the error
            # of the operating system, e.g. for a full disk.
            size = len(model) if isinstance(model, bytes) else model.stat().st_size
            size += _XML_BYTES * len(converted.get_ops())
            with writing(engine, size), engine.open("ab") as file:
                file.write(bytes(size))
            raise OSError(errno.EIO, f"OpenVINO: {error}", str(engine)) from error
        return engine

    def open(self, path: Path, plan: OpenPlan) -> CpuSession:
        """Load OpenVINO IR or an ONNX file without string tensors; see `open_session`.

        Raises:
            UnsupportedModel: an input or output has strings.
        """
        ov = _runtime()
        cores = plan.cores
        core = ov.Core()
        try:
            model = core.read_model(path)
            _refuse_strings(model)
            ports = len(model.inputs)
            specs = [_spec(port) for port in (*model.inputs, *model.outputs)]
            if plan.max_batch == 1:
                specs = _fix_rows(model, specs)
            wide, narrow = load_layouts(
                lambda width: _Layout(core, model, width, cores, plan.precision),
                cores,
                plan.parallel,
            )
        except RuntimeError as error:
            raise InvalidModel(f"OpenVINO cannot load {path}: {_shorten_error(error)}") from error
        return CpuSession(
            tuple(specs[:ports]),
            tuple(specs[ports:]),
            wide=wide,
            narrow=narrow,
            max_batch=plan.max_batch,
            concurrency=plan.parallel,
            steady=not any(node.get_type_name() in _BRANCHING for node in model.get_ops()),
        )


OPENVINO = OpenVinoBackend(
    name="openvino",
    distributions=("openvino",),
    suffixes=(".xml", ".onnx"),
    precisions=("fp32", "bf16", "fp16", "int8"),
)


def _runtime() -> Any:
    """Return the openvino package, prepared for use from several threads.

    OpenVINO's Python binding builds a table of element types on first use. During this, it releases
    the GIL inside the guard of a C++ static variable, so two threads that use the table first at
    the same time deadlock (seen with OpenVINO 2026.4.1). This function uses the table once, in only
    one thread at a time.
    """
    with _FIRST_USE:
        import openvino as ov

        ov.Type(ov.Type.f32.to_dtype())
    return ov


class _Layout:
    """One compiled model with a pool of inference requests, one for each parallel call."""

    def __init__(
        self, core: Any, model: Any, threads: int, cores: int, precision: Precision
    ) -> None:
        # By default, OpenVINO computes in bfloat16 on newer CPUs. Then results would differ between
        # machines.
        hint = "bf16" if precision == "bf16" else "f32"
        self._compiled = compiled = core.compile_model(
            model,
            "CPU",
            {
                "NUM_STREAMS": cores // threads,
                "INFERENCE_NUM_THREADS": cores,
                "INFERENCE_PRECISION_HINT": hint,
                # A thread that is pinned to a core waits for all other threads on this core. With
                # three busy processes on the machine, a call of 20 ms took up to 2.4 s with pinned
                # threads, and up to 0.6 s without pinning.
                "ENABLE_CPU_PINNING": False,
            },
        )
        # OpenVINO silently ignores a precision hint that the CPU does not support.
        used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if used != hint:
            raise BackendUnavailable(
                f"OpenVINO cannot compute in {hint} on this CPU: it would use {used}"
            )
        self._inputs = [_name(port) for port in model.inputs]
        # The names come from the model, because compilation may add the names of fused nodes to an
        # output.
        self._outputs = [_spec(port) for port in model.outputs]
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._streams = cores // threads
        for _ in range(self._streams):
            self._requests.put(compiled.create_infer_request())

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        request = self._requests.get()
        try:
            # The request reads the caller's input arrays without a copy. Its outputs are copied,
            # because the next call overwrites the request's buffers.
            results = request.infer(
                [feeds[name] for name in self._inputs], share_inputs=True, share_outputs=False
            )
            return {
                # The binding returns bfloat16 arrays with the dtype float16.
                spec.name: array.view(spec.numpy_dtype) if spec.dtype == "bfloat16" else array
                for spec, array in zip(self._outputs, results.values(), strict=True)
            }
        except RuntimeError as error:
            raise InferenceFailed(f"OpenVINO failed on this batch: {error}") from error
        finally:
            self._requests.put(request)

    def rest(self) -> None:
        """Release the memory of intermediate tensors, unless a call is in progress.

        For yolov8n on two cores, this is 28 MB in the wide layout and 57 MB in the narrow layout.
        """
        idle: list[Any] = []
        with suppress(Empty):
            while True:
                idle.append(self._requests.get_nowait())
        # OpenVINO cannot release memory while a request is running.
        if len(idle) == self._streams:
            self._compiled.release_memory()
        for request in idle:
            self._requests.put(request)


def _shorten_error(error: RuntimeError) -> str:
    """Return OpenVINO's message on one line, without the positions in OpenVINO's source code."""
    lines = map(str.strip, str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("Exception from "))


def _refuse_strings(model: Any) -> None:
    for spec in map(_spec, (*model.inputs, *model.outputs)):
        if spec.dtype == "object":
            raise UnsupportedModel(
                f"{spec.name!r} has strings, which OpenVINO does not accept from Python: build "
                "the model with --backend onnxruntime"
            )


def _fix_rows(model: Any, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Set each dynamic batch dimension of the inputs to 1: a static graph is faster and smaller.

    Returns:
        `specs` with the dimensions that are known for this batch size. A dynamic batch dimension
        stays -1 in them, so clients see the same shapes with every backend.
    """
    shapes = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        if len(shape) and shape[0].is_dynamic:
            shape[0] = 1
        shapes[port] = shape
    model.reshape(shapes)
    fixed = map(_spec, (*model.inputs, *model.outputs))
    return [
        replace(now, shape=(-1, *now.shape[1:])) if was.shape[:1] == (-1,) else now
        for was, now in zip(specs, fixed, strict=True)
    ]


def _spec(port: Any) -> TensorSpec:
    shape = tuple(-1 if size.is_dynamic else size.get_length() for size in port.get_partial_shape())
    kind = port.get_element_type().get_type_name()
    names = {"string": "object", "bf16": "bfloat16"}
    dtype = names.get(kind) or port.get_element_type().to_dtype().name
    return TensorSpec(_name(port), dtype, shape)


def _name(port: Any) -> str:
    """Return the ONNX name of an input or output.

    It may also have the names of nodes folded into it.
    """
    own: str = port.get_node().get_friendly_name().removesuffix("/sink_port_0")
    return own if own in port.get_names() else port.get_any_name()
