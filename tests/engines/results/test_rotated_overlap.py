"""Overlaps of rotated rectangles against slow, independent computations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fovea_engines.results.rotated import axes, iou, probiou

ROWS = st.tuples(
    st.floats(0, 100), st.floats(0, 100), st.floats(1, 90), st.floats(1, 90), st.floats(-7, 7)
)


def pair(measure, one, other):
    return float(measure(axes(np.array([one])), axes(np.array([other])))[0])


def clipped_area(outline, half_planes):
    """Sutherland and Hodgman: cut a polygon at one line after the other."""
    for point, normal in half_planes:
        depth = [float(np.dot(p - point, normal)) for p in outline]
        cut = []
        for i, p in enumerate(outline):
            j = (i + 1) % len(outline)
            if depth[i] >= 0:
                cut.append(p)
            if (depth[i] >= 0) != (depth[j] >= 0):
                cut.append(p + depth[i] / (depth[i] - depth[j]) * (outline[j] - p))
        outline = cut
    if len(outline) < 3:
        return 0.0
    x, y = np.array(outline).T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def slow_iou(one, other):
    outlines = []
    for cx, cy, w, h, angle in (one, other):
        u = np.array([math.cos(angle), math.sin(angle)])
        v = np.array([-math.sin(angle), math.cos(angle)])
        centre = np.array([cx, cy])
        outlines.append(
            (
                [
                    centre + x * w / 2 * u + y * h / 2 * v
                    for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
                ],
                [
                    (centre - s * side / 2 * axis, s * axis)
                    for axis, side in ((u, w), (v, h))
                    for s in (1, -1)
                ],
            )
        )
    shared = clipped_area(outlines[0][0], outlines[1][1])
    return shared / (one[2] * one[3] + other[2] * other[3] - shared)


def slow_probiou(one, other):
    """The Bhattacharyya distance of two Gaussians in its general form."""
    means, covariances = [], []
    for cx, cy, w, h, angle in (one, other):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        means.append(np.array([cx, cy]))
        covariances.append(turn @ np.diag([w * w / 12, h * h / 12]) @ turn.T)
    middle = sum(covariances) / 2
    apart = means[0] - means[1]
    dets = [np.linalg.det(covariance) for covariance in covariances]
    distance = apart @ np.linalg.inv(middle) @ apart / 8
    distance += math.log(np.linalg.det(middle) / math.sqrt(dets[0] * dets[1])) / 2
    return 1 - math.sqrt(1 - math.exp(-max(distance, 0)))


@given(ROWS, ROWS)
@settings(max_examples=300, deadline=None)
def test_iou_is_that_of_the_clipped_polygon(one, other):
    assert math.isclose(pair(iou, one, other), slow_iou(one, other), abs_tol=1e-6)


@given(ROWS, ROWS)
@settings(max_examples=300, deadline=None)
def test_probiou_is_that_of_the_gaussians(one, other):
    assert math.isclose(pair(probiou, one, other), slow_probiou(one, other), abs_tol=1e-5)


@pytest.mark.parametrize("measure", [iou, probiou])
@given(one=ROWS, other=ROWS)
@settings(max_examples=100, deadline=None)
def test_either_order_and_any_row_of_a_rectangle_give_the_same(measure, one, other):
    found = pair(measure, one, other)
    cx, cy, w, h, angle = other
    assert math.isclose(pair(measure, other, one), found, abs_tol=1e-6)
    assert math.isclose(pair(measure, one, (cx, cy, w, h, angle + math.pi)), found, abs_tol=1e-6)
    assert math.isclose(
        pair(measure, one, (cx, cy, h, w, angle - math.pi / 2)), found, abs_tol=1e-6
    )


@pytest.mark.parametrize("measure", [iou, probiou])
@given(row=ROWS)
def test_a_rectangle_overlaps_itself_wholly_and_never_more(measure, row):
    assert 1 - 1e-6 < pair(measure, row, row) <= 1


def test_known_overlaps():
    # Half of a square over itself, and the octagon of a square turned by an eighth.
    assert pair(iou, (0, 0, 2, 2, 0.3), (math.cos(0.3), math.sin(0.3), 2, 2, 0.3)) == (
        pytest.approx(1 / 3)
    )
    octagon = 8 * (math.sqrt(2) - 1)
    assert pair(iou, (5, 5, 2, 2, 0), (5, 5, 2, 2, math.pi / 4)) == (
        pytest.approx(octagon / (8 - octagon))
    )
    assert pair(iou, (0, 0, 2, 2, 0), (9, 9, 2, 2, 1)) == 0
    # Two squares side by side: a distance of 3/2.
    assert pair(probiou, (0, 0, 2, 2, 0), (2, 0, 2, 2, 0)) == (
        pytest.approx(1 - math.sqrt(1 - math.exp(-1.5)))
    )
