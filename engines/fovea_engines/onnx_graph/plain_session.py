"""Runs models unchanged in ONNX Runtime or OpenVINO, as a reference for comparisons.

This module does not use Fovea's backends, because a reference must share no code with the engines
that a build checks.
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
    """Load a model for the CPU in ONNX Runtime.

    ONNX Runtime's own errors are raised unchanged. `onnxruntime_errors` converts them.

    Args:
        model: path of the file, or its content.
        fused: let ONNX Runtime optimise the graph. The optimised graph runs faster, but some nodes
            are fused or renamed, and the rounding of the values differs.
        keeps_memory: keep the memory of the largest run for the next run.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    # Log only fatal errors. All other errors are raised.
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = keeps_memory
    # Threads of ONNX Runtime that wait must not occupy cores which the code for the results needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Compute QuantizeLinear and DequantizeLinear as separate nodes. The sums of fused INT8
    # operators overflow on CPUs without VNNI.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])


def open_openvino(
    model: Path | bytes, outputs: Sequence[str]
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Load a model for the CPU in OpenVINO, and return a function that computes the named outputs.

    OpenVINO computes in float32. The returned function takes a mapping from the name of each input
    to its array.

    Raises:
        UnsupportedModel: OpenVINO cannot load the model. The returned function raises this error if
            OpenVINO cannot run the model.
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
    """Convert ONNX Runtime's errors in the `with` block to `UnsupportedModel`.

    `explain` takes ONNX Runtime's message, and returns the new message.
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
        "ONNX Runtime cannot run the model (if it was exported for only one size, give its "
        f"training size with --size): {error}"
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
