"""Objects are compared by their masks, their keypoints, or else their boxes."""

from dataclasses import replace

import numpy as np
import pytest
from tests.run_lengths import decoded

from fovea_engines.evaluation.agreement.matching import match
from fovea_engines.evaluation.agreement.overlap import overlap, overlap_of
from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import encode_masks
from fovea_engines.results.masks import Masks, whole_masks

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
