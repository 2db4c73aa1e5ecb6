"""The accuracy of rotated boxes, on cases that can be worked out by hand."""

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.engines.evaluation.test_rotated_agreement import found

from fovea_engines.evaluation.dataset import read_dataset
from fovea_engines.evaluation.evaluate import CompactDetections
from fovea_engines.evaluation.mean_ap import mean_ap
from fovea_preprocess.errors import InvalidOption

WIDTH, HEIGHT = 400, 200
OBJECTS = [(100, 80, 90, 20, 0.6), (300, 100, 60, 50, 2.5 - math.pi)]


def corners(row):
    cx, cy, w, h, angle = row
    return cv2.boxPoints(((cx, cy), (w, h), math.degrees(angle))) / [WIDTH, HEIGHT]


@pytest.fixture
def dataset(tmp_path):
    """An image with two objects of one class, in YOLO's format of corners."""
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "images" / "a.png")
    lines = (" ".join(map(str, [0, *corners(row).ravel()])) for row in OBJECTS)
    (tmp_path / "labels" / "a.txt").write_text("\n".join(lines))
    return read_dataset(tmp_path)


def test_corners_are_read_as_a_regular_rectangle(dataset):
    assert np.allclose(dataset.images[0].rotated, OBJECTS, atol=1e-2)


def test_all_found_is_1_and_one_of_two_is_half(dataset):
    assert mean_ap(dataset, [CompactDetections.of(found(*OBJECTS))]).map50_95 == pytest.approx(1)
    # Of the 101 recalls, those up to .5 are reached.
    assert mean_ap(dataset, [CompactDetections.of(found(OBJECTS[0]))]).map50_95 == pytest.approx(
        51 / 101
    )


def test_what_is_turned_the_other_way_is_not_found(dataset):
    turned = [(*row[:4], -row[4]) for row in OBJECTS[:1]]
    assert mean_ap(dataset, [CompactDetections.of(found(*turned))]).map50 == 0


def test_the_overlap_is_that_of_the_rectangles(dataset):
    # An IoU of 1 / 1.3 passes .50 to .75, six of ten.
    longer = [(cx, cy, w * 1.3, h, angle) for cx, cy, w, h, angle in OBJECTS]
    assert mean_ap(dataset, [CompactDetections.of(found(*longer))]).map50_95 == pytest.approx(0.6)


def test_sizes_are_of_the_rectangles(dataset):
    # 90 x 20 is between 32 x 32 and 96 x 96, and so is 60 x 50.
    by_size = mean_ap(dataset, [CompactDetections.of(found(*OBJECTS))]).by_size
    assert by_size == {"small": None, "medium": pytest.approx(1), "large": None}


def test_labels_of_upright_boxes_alone_are_refused(dataset):
    upright = replace(dataset, images=tuple(replace(one, rotated=None) for one in dataset.images))
    with pytest.raises(InvalidOption, match="corners"):
        mean_ap(upright, [CompactDetections.of(found(*OBJECTS))])
