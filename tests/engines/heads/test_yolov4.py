"""YOLOv4 of the ONNX model zoo: levels as its file has them, which is 250 MB, made here."""

import math

import numpy as np
import pytest

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

SIZE = 416
IMAGE = [TensorSpec("input_1:0", "float32", (1, SIZE, SIZE, 3))]
NAMES = ("Identity:0", "Identity_1:0", "Identity_2:0")
ANCHORS = (
    ((12, 16), (19, 36), (40, 28)),
    ((36, 75), (76, 55), (72, 146)),
    ((142, 110), (192, 243), (459, 401)),
)
# Level, row, column, anchor, class: far from each other, so that none suppresses another.
OBJECTS = ((0, 5, 40, 1, 7), (1, 20, 3, 2, 16), (2, 6, 9, 0, 0))


@pytest.fixture(scope="module")
def levels():
    random = np.random.default_rng(4)
    made = []
    for side in (52, 26, 13):
        level = random.normal(0, 1, (1, side, side, 3, 85))
        level[..., 4:] = random.uniform(0, 0.05, level[..., 4:].shape)
        made.append(level.astype(np.float32))
    for at, y, x, kind, number in OBJECTS:
        made[at][0, y, x, kind, 4] = 0.9
        made[at][0, y, x, kind, 5 + number] = 0.8
    return dict(zip(NAMES, made, strict=True))


def told(outputs):
    specs = [TensorSpec(name, "float32", array.shape) for name, array in outputs.items()]
    return recognise(IMAGE, specs, {}, None, lambda _: [outputs])


def test_boxes_are_those_of_a_loop(levels):
    recognition = told(levels)
    assert (recognition.family, recognition.num_classes) == ("yolov4", 80)
    found = open_head(recognition, IMAGE).decode(levels, 0, PredictOptions())
    want = {}
    for at, y, x, kind, number in OBJECTS:
        stride, scale = 8 * 2**at, (1.2, 1.1, 1.05)[at]
        tx, ty, tw, th = map(float, levels[NAMES[at]][0, y, x, kind, :4])
        cx = (scale / (1 + math.exp(-tx)) - (scale - 1) / 2 + x) * stride
        cy = (scale / (1 + math.exp(-ty)) - (scale - 1) / 2 + y) * stride
        w, h = (math.exp(t) * a for t, a in zip((tw, th), ANCHORS[at][kind], strict=True))
        want[number] = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
    assert sorted(found.class_ids.tolist()) == sorted(want)
    for number, box, score in zip(found.class_ids, found.boxes, found.scores, strict=True):
        assert box == pytest.approx(want[int(number)], rel=1e-5, abs=1e-3)
        assert score == pytest.approx(0.72, abs=1e-5)


def test_decoded_boxes_and_logits_are_left_to_others(levels):
    for columns, change in ((slice(4), 0.5), (slice(4, None), -3.0)):
        other = {name: level.copy() for name, level in levels.items()}
        for level in other.values():
            level[..., columns] = change
        assert told(other).family is None
