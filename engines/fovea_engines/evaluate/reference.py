"""Runs a model with plain ONNX Runtime, as the reference for engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel


@contextmanager
def onnxruntime_errors(step: Literal["load", "run"]) -> Iterator[None]:
    """Raise ONNX Runtime's errors in the block as `UnsupportedModel`."""
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
        raise UnsupportedModel(f"ONNX Runtime cannot {step} the model: {error}") from error


class ReferenceSession:
    """A model with one input, an ONNX file or its bytes, run unchanged.

    It does not use a backend: the reference must not share code with what it checks.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load it.
    """

    def __init__(self, model: Path | bytes) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Q/DQ computed as it is written: fused, it overflows on CPUs without VNNI.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        with onnxruntime_errors("load"):
            self._session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        [feed] = self._session.get_inputs()
        self._input = feed.name

    def run(self, outputs: Sequence[str], row: Array) -> list[Array]:
        """Return the named outputs for one image, [1, ...].

        Raises:
            UnsupportedModel: ONNX Runtime cannot compute them.
        """
        with onnxruntime_errors("run"):
            found: list[Array] = self._session.run(list(outputs), {self._input: row})
        return found
