"""PaddleDetection's rows, and how many there are."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import (
    BOXES,
    CLASSES,
    SCORES,
    assert_found,
    opened,
    told,
)
from tests.engines.heads.expected import File

from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

ROWS = np.array(
    [[id_, score, *box] for id_, score, box in zip(CLASSES, SCORES, BOXES, strict=True)], np.float32
)


def outputs(rows=ROWS, count=2):
    return {"multiclass_nms3_0.tmp_0": rows, "multiclass_nms3_0.tmp_2": np.array([count], np.int32)}


def test_file(shared):
    file = File(shared, "paddle")
    assert file.recognise().family == "paddle"
    file.assert_expected("paddle")


def test_rows():
    recognition = told(outputs())
    assert recognition.family == "paddle"
    head = opened(recognition)
    assert_found(head.decode(outputs(), 0, PredictOptions()))
    assert head.decode(outputs(count=1), 0, PredictOptions()).class_ids.tolist() == CLASSES[:1]


def test_rows_lie_behind_those_of_the_images_before():
    head = opened(told(outputs()))
    both = outputs(np.concatenate([ROWS[:1], ROWS])) | {
        "multiclass_nms3_0.tmp_2": np.array([1, 2], np.int32)
    }
    assert head.decode(both, 0, PredictOptions()).class_ids.tolist() == CLASSES[:1]
    assert_found(head.decode(both, 1, PredictOptions()))


def test_padding_is_nothing():
    padded = np.concatenate([ROWS, np.full((3, 6), -1, np.float32)])
    recognition = told(outputs(padded, 5))
    assert_found(opened(recognition).decode(outputs(padded, 5), 0, PredictOptions(conf=0)))
    empty = outputs(np.zeros((0, 6), np.float32), 0)
    assert told(empty).family == "paddle"
    assert len(opened(recognition).decode(empty, 0, PredictOptions())) == 0


@pytest.mark.parametrize(
    ("columns", "scale", "because"),
    [
        ([1, 0, 2, 3, 4, 5], 1, "column 1 is no probability"),
        ([2, 3, 4, 5, 1, 0], 1, "column 1 is no probability"),
        ([0, 1, 2, 3, 4, 5], [1, 1] + [1 / 640, 1 / 320] * 2, "boxes are no pixels"),
        ([0, 1, 4, 5, 2, 3], 1, "boxes are no corners"),
        ([0, 1, 3, 2, 5, 4], 1, "with x and y swapped none is"),
    ],
)
def test_contradictions(columns, scale, because):
    assert because in told(outputs(ROWS[:, columns] * np.float32(scale))).reason


def test_labels_are_read_from_the_lines_of_character():
    assert told(outputs(), {"character": "a\nb\nc"}).num_classes == 3
