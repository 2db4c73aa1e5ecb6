"""Heads of rotated boxes, by hand."""

import math

import numpy as np
import pytest
from tests.engines.heads.by_hand import excluded, filled, opened, told

from fovea_engines.results.options import PredictOptions

CELLS = 40 * 80 + 20 * 40 + 10 * 20  # of 320x640 at strides 8, 16 and 32


def dense(rows, classes=2):
    """[1, 4 + classes + 1, cells] of rows cx cy w h, probabilities, angle."""
    table = np.zeros((1, 5 + classes, CELLS), np.float32)
    columns = np.indices((CELLS,))[0] % 80
    table[0, 0], table[0, 1] = 8 * columns + 4, 8 * (np.arange(CELLS) // 80) + 4
    table[0, 2:4] = 30
    table[0, -1] = np.linspace(-0.78, 2.35, CELLS)
    table[0, :, : len(rows)] = np.transpose(rows)
    return table


def test_the_class_columns_end_before_the_angle():
    output = dense([(100, 80, 60, 20, 0.1, 0.9, 2.3), (300, 80, 20, 60, 0.8, 0.1, -0.5)])
    found = told({"output0": output})
    assert (found.family, found.num_classes) == ("yolov8-obb", 2)
    assert "contains angles of rotated boxes" in excluded(found, "yolov8")
    objects = opened(found).decode({"output0": output}, 0, PredictOptions())
    assert objects.class_ids.tolist() == [1, 0]
    assert np.allclose(
        objects.rotated,
        [(100, 80, 60, 20, 2.3), (300, 80, 60, 20, math.pi / 2 - 0.5)],
        atol=1e-5,
    )


def test_the_last_column_is_an_angle_or_is_not():
    output = dense([(100, 80, 60, 20, 0.1, 0.9, 0.2)])
    named = {"task": "obb", "names": "['a', 'b']"}
    assert told({"output0": output}, named).family == "yolov8-obb"
    # A detector of probabilities alone.
    probabilities = output.copy()
    probabilities[0, -1, 1:] = 0
    assert told({"output0": probabilities}).family == "yolov8"
    # No box turns a hundred times.
    turning = output * np.array([1] * 6 + [400], np.float32)[:, None]
    found = told({"output0": turning})
    assert found.family is None
    assert "column 6 is not an angle" in excluded(found, "yolov8-obb")


ROWS = [(100, 80, 60, 20, 0.9, 3, -2.5), (300, 90, 50, 40, 0.5, 0, 8.0)]


def test_rows_of_seven_are_centre_size_score_class_angle():
    outputs = {"output0": filled(ROWS, 300)}
    found = told(outputs)
    assert found.family == "yolov10-obb"
    objects = opened(found).decode(outputs, 0, PredictOptions())
    assert np.allclose(
        objects.rotated,
        [(100, 80, 60, 20, math.pi - 2.5), (300, 90, 50, 40, 8 - 2 * math.pi)],
        atol=1e-5,
    )
    assert objects.class_ids.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        (4, 7, "not a probability"),
        (5, 0.5, "not contain class ids"),
        (3, -20, "not sizes"),
        (6, 90, "not an angle"),
    ],
)
def test_other_rows_of_seven_are_not_read_so(column, value, reason):
    rows = np.array(ROWS)
    rows[:, column] = value
    found = told({"output0": filled(rows, 300)})
    assert found.family is None
    assert reason in excluded(found, "yolov10-obb")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("column", range(4))
def test_broken_rows_are_dropped_and_harm_no_other(bad, column):
    outputs = {"output0": filled(ROWS, 300)}
    outputs["output0"][0, 0, column] = bad
    objects = opened(told({"output0": filled(ROWS, 300)})).decode(outputs, 0, PredictOptions())
    assert objects.class_ids.tolist() == [0]
    assert np.isfinite(objects.rotated).all()


def test_two_tensors_of_five_columns_and_of_classes_are_yolo_nas():
    boxes = np.zeros((1, CELLS, 5), np.float32)
    boxes[0] = dense([(100, 80, 60, 20, 0, 0, 1.5)])[0, [0, 1, 2, 3, 6]].T
    scores = np.zeros((1, CELLS, 5), np.float32)
    scores[0, 0, 4] = 0.75
    outputs = {"boxes": boxes, "scores": scores}
    found = told(outputs)
    assert (found.family, found.outputs) == ("yolo-nas-obb", ("boxes", "scores"))
    objects = opened(found).decode(outputs, 0, PredictOptions())
    assert np.allclose(objects.rotated, [(100, 80, 60, 20, 1.5)])
    assert objects.class_ids.tolist() == [4]
