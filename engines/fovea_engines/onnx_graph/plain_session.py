"""Runs models unchanged in plain ONNX Runtime or OpenVINO, as a reference for comparisons.

It uses no backend: the reference must share no code with the engines that are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort


def open_plain(
    model: Path | bytes, *, fused: bool = False, keeps_memory: bool = True
) -> ort.InferenceSession:
    """Load a model on CPU cores; raise ONNX Runtime's errors unchanged, see `onnxruntime_errors`.

    Args:
        model: path of the file, or its content.
        fused: optimize the graph. It runs faster, but nodes have other names, and values round
            differently.
        keeps_memory: keep the memory of the largest run for the next run.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    # Log only fatal errors. All other errors are raised.
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = keeps_memory
    # Waiting threads must not take cores from code that processes the results.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Compute Q/DQ as written. Fused Q/DQ overflows on CPUs without VNNI.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])


def open_openvino(
    model: Path | bytes, outputs: Sequence[str]
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Load a model on CPU cores in float32; return a function that computes the named outputs.

    Raises:
        UnsupportedModel: OpenVINO cannot load the model. The function raises it if OpenVINO cannot
            run the model.
    """
    import openvino as ov

    core = ov.Core()
    with _openvino_errors("load"):
        compiled = core.compile_model(
            core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        with _openvino_errors("run"):
            found = compiled(dict(feeds))
            return [found[name] for name in outputs]

    return run


@contextmanager
def _openvino_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, KeyError) as error:
        raise UnsupportedModel(f"OpenVINO cannot {what} the model: {error}") from error


@contextmanager
def onnxruntime_errors(explain: Callable[[str], str]) -> Iterator[None]:
    """Raise ONNX Runtime's errors in the block as `UnsupportedModel`.

    `explain` returns the message.
    """
    import onnxruntime as ort

    errors = ort.capi.onnxruntime_pybind11_state
    try:
        yield
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        raise UnsupportedModel(explain(str(error))) from error


def cannot_load(error: str) -> str:
    """Return the message for an error while loading a model."""
    return f"ONNX Runtime cannot load the model: {error}"


def cannot_run(error: str) -> str:
    """Return the message for an error while running a model."""
    return (
        "ONNX Runtime cannot run the model (if it was exported for one size only, name that of its "
        f"training with --size): {error}"
    )


def expose_tensors(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """Serialise a model with some inner tensors as additional outputs."""
    import onnx

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    serialised: bytes = shown.SerializeToString()
    return serialised
