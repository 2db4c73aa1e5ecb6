"""Heads of rotated boxes on their files, and by hand."""

import math

import numpy as np
import pytest
from tests.engines.heads.by_hand import excluded, filled, opened, told
from tests.engines.heads.expected import NEAR, File

from fovea_engines.heads.recognise import open_head
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import axes, iou, regular

pytestmark = pytest.mark.real

FILES = {
    "yolo11-obb": "yolov8-obb",
    "yolo11-obb-nometa": "yolov8-obb",
    "yolo26-obb": "yolov10-obb",
    "yolonas-obb": "yolo-nas-obb",
}
# LibreYOLO's own threshold; Ultralytics' is Fovea's.
SUPPRESSION = {"yolonas-obb": {"iou": 0.45}}
CELLS = 40 * 80 + 20 * 40 + 10 * 20  # of 320x640 at strides 8, 16 and 32


@pytest.fixture(scope="module", params=FILES)
def case(request, shared):
    return File(shared, request.param), FILES[request.param], SUPPRESSION.get(request.param, {})


@pytest.mark.parametrize("metadata", [True, False])
def test_the_family_is_recognised_with_and_without_metadata(case, metadata):
    file, family, _ = case
    found = file.recognise(metadata=metadata)
    assert (found.family, found.task) == (family, "obb")


def test_rectangles_are_those_of_the_family(case):
    file, family, given = case
    head, spec = open_head(file.recognise(), file.inputs), file.spec(family)
    options = PredictOptions(conf=0.25 - NEAR, **given)
    for pixels, rows in file.images.values():
        outputs, where = file.run(pixels, spec)
        found = head.decode(outputs, 0, options).to_source(where)
        more = unmatched_rotated(
            zip(found.rotated, found.scores, found.class_ids, strict=True), rows, pixels.shape
        )
        assert not [row for row in more if row[1] >= 0.25 + NEAR], f"more was found: {more}"
        assert not found.take(np.array([], np.intp)).rotated.size


def unmatched_rotated(found, rows, shape, score=NEAR):
    """Find each stored rectangle on an image of this shape, and return what else was found.

    It is an AssertionError where a rectangle is not found.
    """
    left = list(found)
    for want in filter(lambda row: _is_sound(row, *shape[:2]), rows):
        near = [
            i
            for i, row in enumerate(left)
            if row[2] == want["class_id"]
            and abs(row[1] - want["score"]) <= score
            and same(row[0], want["xywhr"])
        ]
        assert near, f"{want} is not found"
        del left[near[0]]
    return left


def _is_sound(row, height, width):
    """Return False for rectangles of negative height and outside the image, as random nets give."""
    x1, y1, x2, y2 = row["box"]
    inside = x1 < width and y1 < height and x2 > 0 and y2 > 0
    return inside and min(row["xywhr"][2:4]) > 0


def same(row, want):
    """Return True if rectangles overlap by .99 and their angles agree to half a degree."""
    row, want = np.array([row], np.float32), regular(np.array([want], np.float32))
    turn = abs(float(row[0, 4] - want[0, 4]))
    turns = [turn, math.pi - turn]
    if want[0, 3] > 0.995 * want[0, 2]:  # almost a square, whose sides may change places
        turns.append(abs(turn - math.pi / 2))
    return min(turns) <= math.radians(0.5) and iou(axes(row), axes(want))[0] >= 0.99


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
    assert "holds angles of rotated boxes" in excluded(found, "yolov8")
    objects = opened(found).decode({"output0": output}, 0, PredictOptions())
    assert objects.class_ids.tolist() == [1, 0]
    assert np.allclose(
        objects.rotated,
        [(100, 80, 60, 20, 2.3), (300, 80, 60, 20, math.pi / 2 - 0.5)],
        atol=1e-5,
    )


def test_a_detector_of_probabilities_alone_has_no_angle():
    output = dense([(100, 80, 60, 20, 0.1, 0.9, 0.2)])
    output[0, -1, 1:] = 0
    assert told({"output0": output}).family == "yolov8"


def test_what_turns_a_hundred_times_is_no_angle():
    output = dense([(100, 80, 60, 20, 0.1, 0.9, 2.3)])
    output[0, -1] *= 400
    found = told({"output0": output})
    assert found.family is None
    assert "column 6 is no angle" in excluded(found, "yolov8-obb")


def test_the_metadata_may_name_the_task():
    output = dense([(100, 80, 60, 20, 0.1, 0.9, 0.2)])
    found = told({"output0": output}, {"task": "obb", "names": "['a', 'b']"})
    assert found.family == "yolov8-obb"


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
    [(4, 7, "no probability"), (5, 0.5, "no class ids"), (3, -20, "no sizes"), (6, 90, "no angle")],
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
