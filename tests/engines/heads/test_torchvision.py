"""torchvision's boxes, labels and scores of one image."""

import json
from itertools import permutations

import numpy as np
import onnxruntime
import pytest
from tests.engines.heads.by_hand import (
    BOXES,
    CLASSES,
    SCORES,
    assert_found,
    opened,
    told,
)
from tests.engines.heads.expected import NEAR, unmatched

from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.recognise import recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

SPECS = [
    TensorSpec("boxes", "float32", (-1, 4)),
    TensorSpec("labels", "int64", (-1,)),
    TensorSpec("scores", "float32", (-1,)),
]


@pytest.mark.parametrize("name", ["tv-fasterrcnn", "tv-fcos"])
def test_files(shared, name):
    path = shared / "models" / "heads" / f"{name}.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    stored = json.loads(path.with_suffix(".expected.json").read_text())["images"]
    answers = []
    for image, rows in stored.items():
        folder = "" if image == "bus.jpg" else "coco64/val"
        pixels = read_image(shared / "data" / folder / image)
        row = np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / 255
        outputs = dict(
            zip(("boxes", "labels", "scores"), session.run(None, {"image": row}), strict=True)
        )
        answers.append(outputs)
        head = FAMILIES["torchvision"].open(("boxes", "scores", "labels"), pixels.shape[:2])
        found = head.decode(outputs, 0, PredictOptions(conf=0.25 - NEAR))
        # Without training some boxes have no area, and a detection has.
        rows = [row for row in rows if _area(row["box"]) > 0]
        left = unmatched((found.boxes, found.scores, found.class_ids), rows, pixels.shape)
        assert not [row for row in left if row[1] >= 0.25 + NEAR]
    inputs = [TensorSpec("image", "float32", (1, 3, -1, -1))]
    recognition = recognise(inputs, SPECS, {}, observe=lambda _: answers)
    assert recognition.family == "torchvision"


def _area(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def outputs():
    arrays = np.float32(BOXES), np.int64(CLASSES), np.float32(SCORES)
    return dict(zip(("boxes", "labels", "scores"), arrays, strict=True))


@pytest.mark.parametrize("order", [*permutations(outputs())], ids="-".join)
def test_any_order(order):
    rows = {name: outputs()[name] for name in order}
    recognition = told(rows)
    assert recognition.family == "torchvision"
    assert_found(opened(recognition).decode(rows, 0, PredictOptions()))
    renamed = dict(zip("abc", rows.values(), strict=True))
    assert told(renamed).family == "torchvision"


def test_labels_of_a_batch_are_another_family():
    rows = {name: array[None] for name, array in outputs().items()}
    assert told(rows).family != "torchvision"


def test_contradictions():
    assert "boxes are no pixels" in told(outputs() | {"boxes": outputs()["boxes"] / 640}).reason
    assert "scores is no probability" in told(outputs() | {"scores": np.float32([9, 2])}).reason
    backwards = outputs()["boxes"][:, [2, 3, 0, 1]]
    assert "boxes are no corners" in told(outputs() | {"boxes": backwards}).reason
    turned = outputs()["boxes"][:, [1, 0, 3, 2]]
    assert "with x and y swapped none is" in told(outputs() | {"boxes": turned}).reason


def test_nothing_found():
    head = opened(told(outputs()))
    nothing = {name: array[:0] for name, array in outputs().items()}
    assert head.contradiction(nothing) is None
    assert len(head.decode(nothing, 0, PredictOptions(conf=0))) == 0
