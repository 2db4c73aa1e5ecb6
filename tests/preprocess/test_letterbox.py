"""The geometry: where images lie, and that mapping there and back is the identity."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fovea_preprocess.letterbox import LetterboxMap, fit, least_size
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
        # NanoDet's program does so around the centre, too: 416 - 277 = 139, of which 69 above.
        (replace(SPECS[3], anchor="center", rounding="down"), (500, 333), (416, 277), (0, 69)),
        # And MMDetection's rounds at the top left.
        (replace(SPECS[3], rounding="nearest"), (1920, 1079), (416, 234), (0, 0)),
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


@given(specs, widths, heights, fractions, fractions, fractions, fractions)
def test_boxes_there_and_back(
    spec: PreprocessSpec, width: int, height: int, a: float, b: float, c: float, d: float
) -> None:
    box = fit(spec, width, height)
    boxes = np.array([(min(a, c), min(b, d), max(a, c), max(b, d))]) * ((width, height) * 2)
    scale, offset = (box.scale_x, box.scale_y), (box.offset_x, box.offset_y)
    back = box.boxes_to_source(boxes * (scale * 2) + offset * 2)
    assert np.abs(back - boxes).max() < 0.5
    assert back.dtype == np.float32
    assert (back >= 0).all()
    assert (back <= ((width, height) * 2)).all()


@given(specs, widths, heights)
def test_boxes_may_return_by_the_ratio_before_rounding(
    spec: PreprocessSpec, width: int, height: int
) -> None:
    box = fit(replace(spec, unscale="ratio"), width, height)
    exact = fit(spec, width, height)
    if spec.fit != "letterbox":
        assert box == exact
        return
    ratio = min(spec.width / width, spec.height / height, spec.max_scale or math.inf)
    assert (box.scale_x, box.scale_y) == (exact.scale_x, exact.scale_y)
    # A box of the image's first half, as YOLOX: less the padding, over the ratio.
    half = np.array([width, height]) * ratio / 2
    corner = np.array([box.offset_x, box.offset_y])
    [back] = box.boxes_to_source(np.array([[*corner, *(corner + half)]]))
    assert np.allclose(back, [0, 0, width / 2, height / 2], rtol=1e-5)


@given(specs, widths, heights)
def test_boxes_are_clipped(spec: PreprocessSpec, width: int, height: int) -> None:
    box = fit(spec, width, height)
    beyond = np.array([(-1e9, -1e9, 1e9, 1e9)], np.float32)
    assert box.boxes_to_source(beyond).tolist() == [[0, 0, width, height]]
    assert beyond[0, 0] == -1e9
    assert box.boxes_to_source(np.empty((0, 4), np.float32)).shape == (0, 4)


def test_maps_are_values() -> None:
    assert fit(SPECS[0], 810, 1080) == LetterboxMap(810, 1080, 640, 640, 480, 640, 80, 0)
    assert math.isclose(fit(SPECS[0], 810, 1080).scale_x, 480 / 810)


RECTS = [
    PreprocessSpec(640, 640, step=32),
    PreprocessSpec(416, 416, anchor="top-left", step=32),
    PreprocessSpec(384, 640, step=64),
    PreprocessSpec(640, 640, max_scale=1.0, step=32),
]


@pytest.mark.parametrize(
    ("image", "size"),
    [
        ((1280, 720), (384, 640)),
        ((640, 480), (480, 640)),
        ((480, 640), (640, 480)),
        ((333, 333), (640, 640)),
        ((1920, 1080), (384, 640)),
        ((8000, 2), (160, 640)),  # a quarter is the least
        ((7, 3000), (640, 160)),
    ],
)
def test_the_smallest_size_that_holds_an_image(
    image: tuple[int, int], size: tuple[int, int]
) -> None:
    assert least_size(RECTS[0], *image) == size


@given(st.sampled_from(RECTS), widths, heights, st.lists(fractions, min_size=4, max_size=4))
def test_an_image_is_scaled_as_in_the_largest_size_and_maps_back(
    spec: PreprocessSpec, width: int, height: int, places: list[float]
) -> None:
    size = least_size(spec, width, height)
    largest = fit(spec.at((spec.height, spec.width)), width, height)
    box = fit(spec.at(size), width, height)
    assert all(side % spec.step == 0 for side in size)
    assert (box.scaled_width, box.scaled_height) == (largest.scaled_width, largest.scaled_height)
    rows, columns = box.visible
    assert (rows.stop - rows.start, columns.stop - columns.start) == (
        box.scaled_height,
        box.scaled_width,
    )
    for side, most, scaled in zip(
        size, (spec.height, spec.width), (box.scaled_height, box.scaled_width), strict=True
    ):
        assert side - spec.step <= max(scaled, most / 4)
    x1, x2 = sorted(place * width for place in places[:2])
    y1, y2 = sorted(place * height for place in places[2:])
    corners = np.array([[x1, y1, x2, y2]])
    scale = np.array([box.scale_x, box.scale_y] * 2)
    shift = np.array([box.offset_x, box.offset_y] * 2)
    np.testing.assert_allclose(box.boxes_to_source(corners * scale + shift), corners, atol=2e-3)


def test_digests_of_one_size_are_those_of_before() -> None:
    assert PreprocessSpec(640, 640).digest != PreprocessSpec(640, 640, step=32).digest
    assert PreprocessSpec(640, 640).digest.startswith("e83e3903c299")
