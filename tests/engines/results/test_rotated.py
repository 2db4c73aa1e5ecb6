"""Rotated rectangles: their regular rows, their overlaps, and the way back to the image.

Each is compared with the definition, or with a slow, independent computation.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.letterbox_cases import SPECS

from fovea_engines.results.rotated import axes, bounds, corners, iou, probiou, regular, to_source
from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.spec import PreprocessSpec

SIDE, PLACE, ANGLE = st.floats(2, 300, width=32), st.floats(-50, 700, width=32), st.floats(-7, 7)
ROWS = st.tuples(PLACE, PLACE, SIDE, SIDE, st.floats(-7, 7, width=32))
NEAR = st.tuples(*[st.floats(0, 100)] * 2, *[st.floats(1, 90)] * 2, ANGLE)
"""Rows of which most pairs overlap."""

SIZES = st.tuples(st.integers(40, 2000), st.integers(40, 2000))


def table(*rows):
    return np.array(rows, np.float32)


def outline(row):
    """The corners, by the definition of a rotation."""
    cx, cy, w, h, angle = map(float, row)
    return [
        (
            cx + x * w / 2 * math.cos(angle) - y * h / 2 * math.sin(angle),
            cy + x * w / 2 * math.sin(angle) + y * h / 2 * math.cos(angle),
        )
        for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def overlap(one, other, measure=iou):
    return float(measure(axes(np.array([one])), axes(np.array([other])))[0])


@given(ROWS)
def test_corners_bounds_and_regular_rows_are_of_the_same_rectangle(row):
    """Corners go clockwise from the top left of the unrotated."""
    points = np.array(outline(row))
    assert np.allclose(corners(table(row))[0], points, atol=1e-3)
    extremes = np.concatenate([points.min(axis=0), points.max(axis=0)])
    assert np.allclose(bounds(table(row))[0], extremes, atol=1e-3)
    [one] = regular(table(row))
    assert one[2] >= one[3]
    assert -math.pi / 4 <= one[4] < 3 * math.pi / 4
    assert all(min(math.dist(a, b) for b in points) < 0.01 for a in outline(one))


@pytest.mark.parametrize("turns", [-1, 0, 1, 3])
def test_the_angle_never_reaches_the_end_of_its_range(turns):
    for off in (-1e-6, -1e-9, 0, 1e-9, 1e-6):
        angle = 3 * math.pi / 4 + turns * math.pi + off
        found = regular(np.array([(0, 0, 2, 1, angle)]))[0, 4]
        assert np.float32(-math.pi / 4) <= found < np.float32(3 * math.pi / 4)
    square = np.array([[50, 40, 20, 20, 0.3 + turns * np.pi / 2]])
    assert regular(square)[0] == pytest.approx([50, 40, 20, 20, 0.3])


@pytest.mark.parametrize(
    ("angle", "first"),
    [(0, (-2, -1)), (math.pi - 0.1, (-2, -1)), (0.1, (-2, -1)), (math.pi / 2, (1, -2))],
)
def test_corners_begin_where_a_line_of_text_is_read_first(angle, first):
    """To the right if it is about level, and else downwards."""
    assert np.allclose(corners(regular(table((0, 0, 4, 2, angle))))[0, 0], first, atol=0.25)


def inverse(back):
    """The map the other way round."""
    sides = back.source_width, back.source_height
    return LetterboxMap(
        back.scaled_width, back.scaled_height, *sides, *sides,
        -back.offset_x / back.scale_x, -back.offset_y / back.scale_y,
    )  # fmt: skip


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@given(ROWS, SIZES)
@settings(max_examples=40, deadline=None)
def test_to_the_input_and_back_is_the_same_rectangle(spec, row, size):
    back = fit(spec, *size)
    if spec.fit == "stretch":
        # One scale for both sides.
        back = replace(back, scaled_height=back.scaled_width, source_height=back.source_width)
    [one] = to_source(to_source(table(row), inverse(back)), back)
    # Letterboxes round the sizes, so that their scales differ by a little.
    unequal = abs(math.log(back.scale_x / back.scale_y))
    assert overlap(row, one) > 0.999 - 2 * unequal * max(row[2:4]) / min(row[2:4])
    assert math.dist(row[:2], one[:2]) < 0.02


@given(ROWS)
def test_under_one_scale_a_rectangle_keeps_its_angle_and_proportions(row):
    back = fit(PreprocessSpec(320, 320), 1280, 640)
    [one], [known] = to_source(table(row), back), regular(table(row))
    assert np.allclose(one[:4], [known[0] * 4, (known[1] - 80) * 4, *known[2:4] * 4], rtol=1e-5)
    turn = abs(one[4] - known[4])
    assert min(turn, math.pi - turn) < 1e-5 or math.isclose(known[2], known[3], rel_tol=1e-5)


@given(ROWS)
def test_a_stretch_keeps_the_first_side_and_the_area(row):
    back = fit(PreprocessSpec(320, 320, fit="stretch"), 960, 640)
    [one] = to_source(table(row), back)
    start, end = (np.array(p) * [3, 2] for p in outline(row)[:2])
    assert math.isclose(one[2] * one[3], row[2] * row[3] * 6, rel_tol=1e-4)
    assert min(abs(side - math.dist(start, end)) for side in one[2:4]) < 0.01
    assert np.allclose(one[:2], [row[0] * 3, row[1] * 2], atol=1e-2)


def test_a_turned_square_stays_turned_where_rounding_makes_the_scales_unequal():
    back = fit(PreprocessSpec(320, 320), 621, 640)
    assert back.scale_x != back.scale_y
    [one] = to_source(table((160, 160, 100, 100, 0.5)), back)
    assert overlap(one, ((160 - 5) * 621 / 310, 320, 200, 200, 0.5)) > 0.99


def clipped_area(polygon, half_planes):
    """Sutherland and Hodgman: cut a polygon at one line after the other."""
    for point, normal in half_planes:
        depth = [float(np.dot(p - point, normal)) for p in polygon]
        cut = []
        for i, p in enumerate(polygon):
            j = (i + 1) % len(polygon)
            if depth[i] >= 0:
                cut.append(p)
            if (depth[i] >= 0) != (depth[j] >= 0):
                cut.append(p + depth[i] / (depth[i] - depth[j]) * (polygon[j] - p))
        polygon = cut
    if len(polygon) < 3:
        return 0.0
    x, y = np.array(polygon).T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def slow_iou(one, other):
    points = np.array(outline(other))
    # Going around clockwise, the inside is to the right of each side.
    planes = [
        (p, (q - p)[::-1] * [-1, 1]) for p, q in zip(points, np.roll(points, -1, 0), strict=True)
    ]
    shared = clipped_area([*np.array(outline(one))], planes)
    return shared / (one[2] * one[3] + other[2] * other[3] - shared)


def slow_probiou(one, other):
    """The Bhattacharyya distance of two Gaussians in its general form."""
    means, covariances = [], []
    for cx, cy, w, h, angle in (one, other):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        means.append(np.array([cx, cy]))
        covariances.append(turn @ np.diag([w * w / 12, h * h / 12]) @ turn.T)
    middle, apart = sum(covariances) / 2, means[0] - means[1]
    dets = [np.linalg.det(covariance) for covariance in covariances]
    distance = apart @ np.linalg.inv(middle) @ apart / 8
    distance += math.log(np.linalg.det(middle) / math.sqrt(dets[0] * dets[1])) / 2
    return 1 - math.sqrt(1 - math.exp(-max(distance, 0)))


@pytest.mark.parametrize(
    ("measure", "slow", "off"), [(iou, slow_iou, 1e-6), (probiou, slow_probiou, 1e-5)]
)
@given(one=NEAR, other=NEAR)
@settings(max_examples=200, deadline=None)
def test_an_overlap_is_that_of_the_slow_computation(measure, slow, off, one, other):
    """In either order, and by any row of a rectangle."""
    want = slow(one, other)
    cx, cy, w, h, angle = other
    for pair in (
        (one, other),
        (other, one),
        (one, (cx, cy, w, h, angle + math.pi)),
        (one, (cx, cy, h, w, angle - math.pi / 2)),
    ):
        assert math.isclose(overlap(*pair, measure), want, abs_tol=off)
    assert 1 - 1e-6 < overlap(one, one, measure) <= 1


def test_known_overlaps():
    # Half of a square over itself, and the octagon of a square turned by an eighth.
    beside = (math.cos(0.3), math.sin(0.3), 2, 2, 0.3)
    assert overlap((0, 0, 2, 2, 0.3), beside) == pytest.approx(1 / 3)
    octagon = 8 * (math.sqrt(2) - 1)
    turned = overlap((5, 5, 2, 2, 0), (5, 5, 2, 2, math.pi / 4))
    assert turned == pytest.approx(octagon / (8 - octagon))
    assert overlap((0, 0, 2, 2, 0), (9, 9, 2, 2, 1)) == 0
    # Two squares side by side: a distance of 3/2.
    apart = overlap((0, 0, 2, 2, 0), (2, 0, 2, 2, 0), probiou)
    assert apart == pytest.approx(1 - math.sqrt(1 - math.exp(-1.5)))
