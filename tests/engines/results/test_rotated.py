"""Rotated rectangles: their regular rows, their outlines, and the way back to the image."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.letterbox_cases import SPECS

from fovea_engines.results.rotated import axes, bounds, corners, iou, regular, to_source
from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.spec import PreprocessSpec

SIDE = st.floats(2, 300, width=32)
PLACE = st.floats(-50, 700, width=32)
ROWS = st.tuples(PLACE, PLACE, SIDE, SIDE, st.floats(-7, 7, width=32))
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


def overlap(one, other):
    return float(iou(axes(table(one)), axes(table(other)))[0])


@given(ROWS)
def test_corners_go_clockwise_from_the_top_left_of_the_unrotated(row):
    assert np.allclose(corners(table(row))[0], outline(row), atol=1e-3)


@given(ROWS)
def test_bounds_touch_the_outermost_corners(row):
    points = np.array(outline(row))
    expected = np.concatenate([points.min(axis=0), points.max(axis=0)])
    assert np.allclose(bounds(table(row))[0], expected, atol=1e-3)


@given(ROWS)
def test_the_regular_row_is_of_the_same_rectangle(row):
    [one] = regular(table(row))
    assert one[2] >= one[3]
    assert -math.pi / 4 <= one[4] < 3 * math.pi / 4
    ours, theirs = (sorted(np.round(outline(r), 3).tolist()) for r in (one, row))
    assert all(min(math.dist(a, b) for b in theirs) < 0.01 for a in ours)


@pytest.mark.parametrize("turns", [-1, 0, 1, 3])
@pytest.mark.parametrize("off", [-1e-6, -1e-9, 0, 1e-9, 1e-6])
def test_the_angle_never_reaches_the_end_of_its_range(turns, off):
    angle = 3 * math.pi / 4 + turns * math.pi + off
    found = regular(np.array([(0, 0, 2, 1, angle)]))[0, 4]
    assert np.float32(-math.pi / 4) <= found < np.float32(3 * math.pi / 4)


@pytest.mark.parametrize(
    ("angle", "first"),
    [(0, (-2, -1)), (math.pi - 0.1, (-2, -1)), (0.1, (-2, -1)), (math.pi / 2, (1, -2))],
)
def test_corners_begin_where_a_line_of_text_is_read_first(angle, first):
    """To the right if it is about level, and else downwards."""
    assert np.allclose(corners(regular(table((0, 0, 4, 2, angle))))[0, 0], first, atol=0.25)


def inverse(back):
    """The map the other way round."""
    return LetterboxMap(
        back.scaled_width,
        back.scaled_height,
        back.source_width,
        back.source_height,
        back.source_width,
        back.source_height,
        -back.offset_x / back.scale_x,
        -back.offset_y / back.scale_y,
    )


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
    known = ((160 - 5) * 621 / 310, 320, 200, 200, 0.5)
    assert overlap(one, known) > 0.99


@pytest.mark.parametrize("quarter", [-3, -1, 0, 1, 2])
def test_a_square_has_one_regular_row(quarter):
    row = np.array([[50, 40, 20, 20, 0.3 + quarter * np.pi / 2]])
    assert regular(row)[0] == pytest.approx([50, 40, 20, 20, 0.3])
