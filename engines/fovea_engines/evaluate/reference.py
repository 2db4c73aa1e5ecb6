"""Runs a model with plain ONNX Runtime, as the reference for engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel


class ReferenceSession:
    """A model with one input, run unchanged.

    It does not use a backend: the reference must not share code with what it checks.

    Args:
        model: ONNX, a file or its bytes.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load it.
    """

    def __init__(self, model: Path | bytes) -> None:
        import onnxruntime as ort

        errors = ort.capi.onnxruntime_pybind11_state
        self._refusals = (
            errors.Fail,
            errors.InvalidArgument,
            errors.InvalidGraph,
            errors.NotImplemented,
            errors.RuntimeException,
        )
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Q/DQ computed as it is written: fused, it overflows on CPUs without VNNI.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            self._session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        except self._refusals as error:
            raise UnsupportedModel(f"ONNX Runtime cannot load the model: {error}") from error
        [feed] = self._session.get_inputs()
        self._input = feed.name

    def run(self, outputs: Sequence[str], row: Array) -> list[Array]:
        """Return the named outputs for one image, [1, ...].

        Raises:
            UnsupportedModel: ONNX Runtime cannot compute them.
        """
        try:
            found: list[Array] = self._session.run(list(outputs), {self._input: row})
        except self._refusals as error:
            raise UnsupportedModel(f"ONNX Runtime cannot run the model: {error}") from error
        return found
