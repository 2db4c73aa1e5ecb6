"""Rows of seven columns: YOLOv7's and YOLO-NAS's of all images, and EfficientDet's."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import (
    BOXES,
    CLASSES,
    SCORES,
    assert_found,
    excluded,
    opened,
    told,
)
from tests.engines.heads.expected import File

from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

YOLO_NAS = np.array(
    [[0, *box, score, id_] for box, score, id_ in zip(BOXES, SCORES, CLASSES, strict=True)],
    np.float32,
)
YOLOV7 = YOLO_NAS[:, [0, 1, 2, 3, 4, 6, 5]]
AUTOML = (YOLO_NAS[:, [0, 2, 1, 4, 3, 5, 6]] + np.float32([0] * 6 + [1]))[None]


def test_file(shared):
    file = File(shared, "yolonas-flat")
    assert file.recognise().family == "yolonas-flat"
    file.assert_expected("yolonas-flat")


def test_file_by_its_numbers(shared):
    file = File(shared, "yolonas-flat")
    [output] = file.graph.graph.output
    output.name, before = "output", output.name
    for node in file.graph.graph.node:
        node.output[:] = ["output" if name == before else name for name in node.output]
    file.outputs = tuple(type(o)("output", o.dtype, o.shape) for o in file.outputs)
    recognition = file.recognise()
    assert recognition.family == "yolonas-flat"
    assert "column 5 holds no class ids" in excluded(recognition, "yolov7-end2end")


@pytest.mark.parametrize(
    ("rows", "family", "other"),
    [
        (YOLO_NAS, "yolonas-flat", "yolov7-end2end"),
        (YOLOV7, "yolov7-end2end", "yolonas-flat"),
    ],
    ids=["yolonas", "yolov7"],
)
def test_whole_numbers_are_classes(rows, family, other):
    recognition = told({"output": rows})
    assert recognition.family == family
    assert "holds no class ids" in excluded(recognition, other) or "is no probability" in excluded(
        recognition, other
    )
    head = opened(recognition)
    assert_found(head.decode({"output": rows}, 0, PredictOptions()))
    one_class = rows * np.float32([c not in CLASSES for c in rows[0]])
    assert told({"output": one_class}).family == family


def test_a_name_does_not_outweigh_numbers():
    assert told({"graph2_flat_predictions": YOLOV7}).family == "yolov7-end2end"


def test_no_rows_cannot_be_told():
    empty = {"output": np.zeros((0, 7), np.float32)}
    assert told(empty).open == ("yolov7-end2end", "yolonas-flat")
    recognition = told(empty, family="yolov7-end2end")
    assert len(opened(recognition).decode(empty, 0, PredictOptions())) == 0


@pytest.mark.parametrize(
    ("columns", "scale", "because"),
    [
        ([1, 2, 3, 4, 0, 5, 6], 1, "column 0 is no number of the only image"),
        ([0, 1, 2, 3, 4, 5, 6], [1] + [1 / 640, 1 / 320] * 2 + [1, 1], "boxes are no pixels"),
        ([0, 3, 4, 1, 2, 5, 6], 1, "boxes are no corners"),
        ([0, 2, 1, 4, 3, 5, 6], 1, "with x and y swapped none is"),
    ],
)
def test_contradictions(columns, scale, because):
    assert because in told({"output": YOLO_NAS[:, columns] * np.float32(scale)}).reason


def test_efficientdet():
    outputs = {"detections:0": AUTOML}
    recognition = told(outputs)
    assert recognition.family == "automl-efficientdet"
    assert_found(opened(recognition).decode(outputs, 0, PredictOptions()))
    assert told({"output": AUTOML}).family is None


def test_efficientdet_contradictions():
    x_first = AUTOML[..., [0, 2, 1, 4, 3, 5, 6]]
    assert "with x and y swapped none is" in told({"detections": x_first}).reason
    from_zero = AUTOML - np.float32([0] * 6 + [3])
    assert "the first is 1" in told({"detections": from_zero}).reason
