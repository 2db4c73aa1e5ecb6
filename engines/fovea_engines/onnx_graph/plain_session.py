"""Runs models with plain ONNX Runtime or OpenVINO, as they are, to compare others with them.

No backend takes part: what engines are checked against must share no code with them.
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
    """Load a model on CPU cores.

    Args:
        model: the file, or its content.
        fused: run it faster; the nodes then have other names, and round differently.
        keeps_memory: keep the memory of the largest run for the next one.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    # Errors are raised; only what ends the process is logged.
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = keeps_memory
    # Threads that wait are not to take the cores from what is computed with the answers.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Q/DQ computed as it is written: fused, it overflows on CPUs without VNNI.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])


def open_openvino(
    model: Path | bytes, outputs: Sequence[str]
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Load a model on CPU cores in float32, and return the call that computes outputs of it.

    Both raise UnsupportedModel where OpenVINO cannot.
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
    """Raise ONNX Runtime's errors in the block as `UnsupportedModel`, explained."""
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
    """Explain an error of loading a model."""
    return f"ONNX Runtime cannot load the model: {error}"


def cannot_run(error: str) -> str:
    """Explain an error of running a model."""
    return (
        "ONNX Runtime cannot run the model (if it was exported for one size only, name that of its "
        f"training with --size): {error}"
    )


def expose_tensors(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """Serialise a model with some of its inner tensors as further outputs."""
    import onnx

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    serialised: bytes = shown.SerializeToString()
    return serialised
