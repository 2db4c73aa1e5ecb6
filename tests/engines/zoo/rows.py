"""What the programs of the families, and plain ONNX Runtime, make of an image."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import onnxruntime
from tests.engines.heads.expected import THRESHOLD, assert_objects
from tests.engines.zoo.cases import HEADS, case_of, expected


def assert_rows(url: str, name: str, shared: Path) -> None:
    """Ask a model with its images: the same classes, boxes, scores and keypoints, and no more.

    Args:
        url: where the model predicts.
        name: of its file.
        shared: folder of real models and images.
    """
    case, told = case_of(name), expected(name)
    # A row that lies on the threshold may fall either way.
    low, high = THRESHOLD - case.score, THRESHOLD + case.score
    task = {"face": "detect"}.get(told["task"], told["task"])
    for image, stored in told["images"].items():
        if image not in (case.images or (image,)):
            continue
        path = shared / "data" / ("" if image == "bus.jpg" else "coco64/val") / image
        options = {"conf": low, **case.options}
        answer = httpx.post(url, content=path.read_bytes(), params=options, timeout=60).json()
        assert answer["task"] == task, answer
        [found] = answer["images"]
        rows = [row for row in stored if row["score"] > high]
        shape = (found["height"], found["width"])
        assert_objects(_columns(found["detections"]), rows, shape, case)


def _columns(detections: list[dict[str, Any]]) -> SimpleNamespace:
    """Detections of an answer as the arrays that an engine gives."""
    return SimpleNamespace(
        boxes=np.array(
            [[one["box"][side] for side in ("x1", "y1", "x2", "y2")] for one in detections]
        ),
        scores=np.array([one["score"] for one in detections]),
        class_ids=np.array([one["class_id"] for one in detections]),
        keypoints=[
            np.array([[point["x"], point["y"], point["score"]] for point in one["keypoints"]])
            for one in detections
            if "keypoints" in one
        ],
    )


def plainly(name: str, row: np.ndarray) -> dict[str, np.ndarray]:
    """Run the file of one input, as its exporter wrote it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(HEADS / f"{name}.onnx", options)
    [image] = session.get_inputs()
    answers = session.run(None, {image.name: row})
    return dict(zip((o.name for o in session.get_outputs()), answers, strict=True))
