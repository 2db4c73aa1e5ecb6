"""Objects are compared by their masks, keypoints, rotated boxes, or else their upright boxes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.run_lengths import decoded

from fovea_engines.evaluation.agreement.identity import compare_detections
from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, match
from fovea_engines.evaluation.agreement.overlap import overlap, overlap_of, rotated_iou
from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import encode_masks
from fovea_engines.results.masks import Masks, whole_masks
from fovea_engines.results.rotated import bounds, regular
from fovea_preprocess.errors import Disagreement

SIZE = 80, 120
BOXES = [[10, 10, 60, 50], [40, 20, 110, 70], [100, 60, 119, 79]]


def boxes(*corners):
    count = len(corners)
    return Detections(
        np.array(corners, np.float32).reshape(-1, 4),
        np.full(count, 0.9, np.float32),
        np.zeros(count, np.int32),
    )


def with_masks(seed):
    """Coarse random masks, each within its box."""
    found, random = boxes(*BOXES), np.random.default_rng(seed)
    windows = tuple(random.normal(size=(9, 13)).astype(np.float32) for _ in BOXES)
    places = found.boxes.astype(np.float64)
    return replace(found, masks=Masks(windows, places, places, SIZE))


def with_keypoints(points):
    return replace(boxes(*BOXES[: len(points)]), keypoints=np.array(points, np.float32))


def test_masks_overlap_as_their_pixels_do():
    one, other = with_masks(1), with_masks(2)
    ours, theirs = (
        [decoded(mask).astype(bool) for mask in encode_masks(found.masks, "rle")]
        for found in (one, other)
    )
    expected = [[(a & b).sum() / (a | b).sum() for b in theirs] for a in ours]
    assert overlap_of(one, other) == "mask IoU"
    assert overlap(one, other) == pytest.approx(np.array(expected))
    assert np.diag(overlap(one, one)).tolist() == [1, 1, 1]


def test_empty_masks_overlap_as_their_boxes():
    empty = replace(boxes(*BOXES), masks=whole_masks(np.full((3, 4, 6), -1.0), SIZE))
    assert overlap(empty, empty) == pytest.approx(overlap(boxes(*BOXES), boxes(*BOXES)))


def test_a_model_with_other_masks_in_the_same_boxes_is_another():
    found = match(with_masks(1), with_masks(2), 0.25, 0.05)
    assert found.overlap_of == "mask IoU"
    assert found.quality < 0.5
    assert match(with_masks(1), with_masks(1), 0.25, 0.05).quality == 1


def test_keypoints_are_compared_by_the_rules_of_coco():
    """One point of a person, off by what people differ in it: COCO's e to the -1/2."""
    person = np.zeros((1, 17, 3), np.float32)
    person[..., 2] = 1
    moved = person.copy()
    area = (60 - 10) * (50 - 10)
    moved[0, 0, 0] = 2 * 0.026 * np.sqrt(area)
    found = overlap(with_keypoints(person), with_keypoints(moved))
    assert found[0, 0] == pytest.approx((16 + np.exp(-0.5)) / 17)
    assert overlap_of(with_keypoints(person), with_keypoints(moved)) == "OKS"
    assert overlap_of(with_keypoints(person), boxes(BOXES[0])) == "IoU"


def test_points_that_no_model_sees_do_not_count():
    five = np.zeros((1, 5, 3), np.float32)
    five[0, :4, 2] = 1
    moved = five.copy()
    moved[0, 4, :2] = 1000
    assert overlap(with_keypoints(five), with_keypoints(moved))[0, 0] == 1
    moved[0, 4, 2] = 1
    assert overlap(with_keypoints(five), with_keypoints(moved))[0, 0] == pytest.approx(0.8)


def test_objects_without_keypoints_overlap_as_their_boxes():
    nothing = with_keypoints(np.zeros((3, 17, 3)))
    assert overlap(nothing, nothing) == pytest.approx(overlap(boxes(*BOXES), boxes(*BOXES)))


@pytest.mark.parametrize("make", [boxes, lambda: with_keypoints(np.zeros((0, 17, 3)))])
def test_nothing_overlaps_with_nothing(make):
    assert overlap(make(), make()).shape == (0, 0)


def turned_boxes(*rows):
    """Detections of one class of cx cy w h angle, the first the best."""
    table = np.array(rows, np.float32).reshape(-1, 5)
    scores = np.linspace(0.9, 0.6, len(table)).astype(np.float32)
    boxes = bounds(table).astype(np.float32)
    return Detections(boxes, scores, np.zeros(len(table), np.int32), rotated=regular(table))


def quality(want, have):
    return match(want, have, CONF, MARGIN).quality


def test_every_pair_of_rotated_boxes_has_its_overlap():
    one = np.array([(0, 0, 4, 2, 0), (50, 50, 4, 2, 1)], np.float32)
    other = np.array([(1, 0, 4, 2, 0), (0, 0, 2, 4, 0), (50, 50, 4, 2, 1)], np.float32)
    expected = [[6 / 10, 4 / 12, 0], [0, 0, 1]]
    assert rotated_iou(one, other) == pytest.approx(np.array(expected))
    assert rotated_iou(one, other[:0]).shape == (2, 0)


def test_what_is_turned_the_other_way_is_missed_though_its_upright_box_is_the_same():
    want, have = turned_boxes((50, 50, 80, 10, 0.6)), turned_boxes((50, 50, 80, 10, -0.6))
    assert np.allclose(want.boxes, have.boxes)
    matching = match(want, have, CONF, MARGIN)
    assert (matching.missed, matching.extra) == (1, 1)
    with pytest.raises(Disagreement, match=r"\d px"):
        compare_detections("bus.jpg", want, have, 0.05)


def test_a_small_turn_costs_its_overlap():
    want = turned_boxes((50, 50, 40, 20, 0.6))
    assert 0.9 < quality(want, turned_boxes((50, 50, 40, 20, 0.65))) < 0.97
    assert quality(want, turned_boxes((50, 50, 40, 20, 0.6))) == pytest.approx(1)


@pytest.mark.parametrize(
    "row",
    [(50, 50, 20.001, 20, 0.3), (50, 50, 30, 20, -1e-4), (50, 50, 30, 20, math.pi - 1e-4)],
    ids=["sides change places", "just under 0", "just under pi"],
)
def test_another_regular_row_of_almost_the_same_is_no_difference(row):
    want = turned_boxes((50, 50, 20, 20.001, 0.3) if row[2] < 30 else (50, 50, 30, 20, 1e-4))
    box_px, _ = compare_detections("bus.jpg", want, turned_boxes(row), 0.05)
    assert box_px < 0.02
    assert quality(want, turned_boxes(row)) > 0.999
