"""The geometry: where images lie, and that mapping there and back is the identity."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.spec import PreprocessSpec

SPECS = [
    PreprocessSpec(640, 640),
    PreprocessSpec(384, 640),
    PreprocessSpec(640, 320, max_scale=1.0),
    PreprocessSpec(416, 416, anchor="top-left"),
    PreprocessSpec(480, 640, fit="stretch"),
    PreprocessSpec(224, 224, fit="center-crop", crop_ratio=256 / 224),
    PreprocessSpec(224, 224, fit="center-crop"),
]

specs = st.sampled_from(SPECS)
widths = st.integers(1, 8000)
heights = st.integers(1, 8000)
fractions = st.floats(0, 1, width=32)


@pytest.mark.parametrize(
    ("spec", "size", "scaled", "offset"),
    [
        (SPECS[0], (810, 1080), (480, 640), (80, 0)),
        (SPECS[0], (1280, 720), (640, 360), (0, 140)),
        (SPECS[0], (500, 333), (640, 426), (0, 107)),
        # Odd padding: 640 - 427 = 213, of which 106 above.
        (SPECS[0], (1000, 667), (640, 427), (0, 106)),
        (SPECS[0], (10, 10), (640, 640), (0, 0)),
        (SPECS[0], (8000, 2), (640, 1), (0, 319)),
        (SPECS[1], (1920, 1080), (640, 360), (0, 12)),
        (SPECS[2], (100, 50), (100, 50), (110, 295)),
        # YOLOX cuts the fraction off: 333 * 416 / 500 is 277.06, 1079 * 416 / 1920 is 233.8.
        (SPECS[3], (500, 333), (416, 277), (0, 0)),
        (SPECS[3], (1920, 1079), (416, 233), (0, 0)),
        (SPECS[4], (33, 1000), (640, 480), (0, 0)),
        # torchvision: Resize(256) gives 341 x 256, CenterCrop(224) begins at round(58.5) = 58, 16.
        (SPECS[5], (640, 480), (341, 256), (-58, -16)),
        (SPECS[6], (480, 640), (224, 298), (0, -37)),
    ],
)
def test_fit(
    spec: PreprocessSpec, size: tuple[int, int], scaled: tuple[int, int], offset: tuple[int, int]
) -> None:
    box = fit(spec, *size)
    assert (box.scaled_width, box.scaled_height) == scaled
    assert (box.offset_x, box.offset_y) == offset
    assert box.scale_x == scaled[0] / size[0]
    assert box.scale_y == scaled[1] / size[1]


@given(specs, widths, heights)
def test_the_image_is_seen(spec: PreprocessSpec, width: int, height: int) -> None:
    rows, columns = fit(spec, width, height).visible
    assert 0 <= rows.start < rows.stop <= spec.height
    assert 0 <= columns.start < columns.stop <= spec.width
    if spec.fit != "letterbox":
        assert (rows.stop - rows.start, columns.stop - columns.start) == (spec.height, spec.width)


@given(widths, heights, st.sampled_from(SPECS[:2]))
def test_padding_is_even(width: int, height: int, spec: PreprocessSpec) -> None:
    rows, columns = fit(spec, width, height).visible
    assert spec.height - rows.stop - rows.start in (0, 1)
    assert spec.width - columns.stop - columns.start in (0, 1)


@given(specs, widths, heights, st.lists(st.tuples(fractions, fractions), min_size=1, max_size=9))
def test_points_there_and_back(
    spec: PreprocessSpec, width: int, height: int, parts: list[tuple[float, float]]
) -> None:
    box = fit(spec, width, height)
    points = np.array(parts) * (width, height)
    back = box.points_to_source(box.points_to_input(points))
    assert np.abs(back - points).max() < 0.5
    assert back.dtype == np.float32
    assert np.array_equal(box.points_to_source(box.points_to_input(points[None]))[0], back)


@given(specs, widths, heights, fractions, fractions, fractions, fractions)
def test_boxes_there_and_back(
    spec: PreprocessSpec, width: int, height: int, a: float, b: float, c: float, d: float
) -> None:
    box = fit(spec, width, height)
    boxes = np.array([(min(a, c), min(b, d), max(a, c), max(b, d))]) * ((width, height) * 2)
    back = box.boxes_to_source(box.boxes_to_input(boxes))
    assert np.abs(back - boxes).max() < 0.5
    assert (back >= 0).all()
    assert (back <= ((width, height) * 2)).all()


@given(specs, widths, heights)
def test_boxes_are_clipped(spec: PreprocessSpec, width: int, height: int) -> None:
    box = fit(spec, width, height)
    beyond = np.array([(-1e6, -1e6, 1e6, 1e6)], np.float32)
    assert box.boxes_to_source(beyond).tolist() == [[0, 0, width, height]]
    assert beyond[0, 0] == -1e6
    assert box.boxes_to_source(np.empty((0, 4), np.float32)).shape == (0, 4)


@given(st.sampled_from(SPECS[:5]), st.integers(1, 600), st.integers(1, 600))
def test_a_mask_of_the_visible_part_covers_the_image(
    spec: PreprocessSpec, width: int, height: int
) -> None:
    box = fit(spec, width, height)
    mask = np.zeros((spec.height, spec.width), bool)
    mask[box.visible] = True
    back = box.mask_to_source(mask)
    assert back.dtype == bool
    assert back.shape == (height, width)
    assert back.all()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [(810, 1080), (320, 200), (1000, 100), (61, 47)])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
def test_a_mask_lands_where_its_box_does(
    spec: PreprocessSpec, size: tuple[int, int], dtype: type
) -> None:
    box = fit(spec, *size)
    rows, columns = box.visible
    x1, x2 = (columns.start * 3 + columns.stop) // 4, (columns.start + columns.stop * 3) // 4
    y1, y2 = (rows.start * 3 + rows.stop) // 4, (rows.start + rows.stop * 3) // 4
    mask = np.zeros((spec.height, spec.width), dtype)
    mask[y1:y2, x1:x2] = 1
    found = np.argwhere(box.mask_to_source(mask) >= 0.5)
    wanted = box.boxes_to_source(np.array([(x1, y1, x2, y2)], np.float32))[0]
    (top, left), (bottom, right) = found.min(0), found.max(0) + 1
    # A source pixel belongs to the mask when its centre does.
    slack = 0.5 + 0.1
    assert np.abs(np.array((left, top, right, bottom)) - wanted).max() <= slack


def test_a_crop_shows_nothing_of_what_it_cuts() -> None:
    box = fit(PreprocessSpec(100, 100, fit="center-crop"), 300, 100)
    mask = box.mask_to_source(np.ones((100, 100), np.uint8))
    assert mask[:, 100:200].all()
    assert not mask[:, :100].any()
    assert not mask[:, 200:].any()


def test_maps_are_values() -> None:
    assert fit(SPECS[0], 810, 1080) == LetterboxMap(810, 1080, 640, 640, 480, 640, 80, 0)
    assert math.isclose(fit(SPECS[0], 810, 1080).scale_x, 480 / 810)
