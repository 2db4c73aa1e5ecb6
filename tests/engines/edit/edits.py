"""Real models for the tests of edits, run by plain ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from fovea_engines.edit.check import check
from fovea_engines.edit.edited import Edited
from fovea_engines.edit.run import sample
from fovea_engines.onnx_graph.load import load


def model(shared: Path, name: str) -> onnx.ModelProto:
    return load(shared / "models" / f"{name}.onnx").proto


def difference(before: onnx.ModelProto, edited: Edited, rows: int = 1) -> float | None:
    """Check an edit, and return the largest difference of an output."""
    return check(before, edited, sample(before, rows))[1]


def run(edited: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(edited.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).random(shape, np.float32)
