"""Rotated boxes are drawn as rectangles with an arrowhead."""

import math

import numpy as np
import pytest

from fovea_engines.drawing.drawing import draw
from fovea_engines.results.colours import colour
from fovea_engines.results.detections import Detections
from fovea_engines.results.rotated import bounds, corners, regular
from fovea_engines.results.vocabulary import WORDLESS

GREY = 90


def drawn(row, size=(400, 600)):
    table = regular(np.array([row], np.float32))
    one = Detections(
        bounds(table).astype(np.float32),
        np.array([0.5], np.float32),
        np.array([3], np.int32),
        rotated=table,
    )
    return draw(one, np.full((*size, 3), GREY, np.uint8), WORDLESS)


def at(image, point):
    x, y = (round(float(number)) for number in point)
    return tuple(image[y, x].tolist())


def test_the_sides_have_the_colour_of_the_class_and_the_upright_box_is_not_drawn():
    row = (300, 200, 200, 80, 0.5)
    image = drawn(row)
    outline = corners(np.array([row]))[0]
    for one, other in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        assert at(image, (one + other) / 2) == colour(3)
    x1, _, _, y2 = bounds(np.array([row]))[0]
    assert at(image, (x1, y2)) == (GREY,) * 3


def test_the_arrowhead_is_at_the_end_that_the_angle_points_to():
    cx, cy, width, _, angle = row = (300, 200, 200, 80, 0.5)
    image = drawn(row)
    towards = np.array([math.cos(angle), math.sin(angle)])
    assert at(image, (cx, cy) + towards * (width / 2 - 8)) == colour(3)
    assert at(image, (cx, cy) - towards * (width / 2 - 8)) == (GREY,) * 3


@pytest.mark.parametrize("size", [(1, 1), (2, 900), (20, 20)])
@pytest.mark.parametrize("row", [(0, 0, 1e6, 9e5, 1), (0.3, 0.3, 0.2, 0.1, 2)])
def test_tiny_images_and_far_rectangles_are_survived(size, row):
    assert drawn(row, size).shape == (*size, 3)
