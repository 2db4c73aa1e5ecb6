"""Maps are resized to the pixels of an image by the rules of OpenCV and torch."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask, best_of
from fovea_engines.results.resampling import nearest, smooth
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec

SIDES = st.integers(1, 90)
FITS = st.sampled_from(["letterbox", "stretch", "center-crop"])


def random_map(height, width, seed=0):
    return np.random.default_rng(seed).normal(size=(height, width)).astype(np.float32)


@settings(deadline=None)
@given(SIDES, SIDES, st.integers(1, 40), st.integers(1, 40))
def test_a_stretched_map_is_resized_as_opencv_does(width, height, columns, rows):
    back = fit(PreprocessSpec(64, 96, fit="stretch"), width, height)
    values = random_map(rows, columns)
    want = cv2.resize(values, (width, height), interpolation=cv2.INTER_LINEAR)
    assert smooth(values, back) == pytest.approx(want.reshape(height, width), abs=2e-3)


@settings(deadline=None)
@given(SIDES, SIDES, st.sampled_from([1, 2, 4]), FITS)
def test_the_place_of_a_pixel_in_the_input_is_found(width, height, stride, way):
    """A map that holds the coordinates of its cells tells where each pixel was put."""
    back = fit(PreprocessSpec(64, 96, fit=way), width, height)
    y, x = np.mgrid[0 : 64 // stride, 0 : 96 // stride].astype(np.float32)
    centres = np.stack([np.arange(width) + 0.5, np.zeros(width)], axis=-1)
    want = (centres[:, 0] * back.scale_x + back.offset_x) / stride - 0.5
    found = smooth(x, back)
    assert found.shape == (height, width)
    assert found[0] == pytest.approx(np.clip(want, 0, x.max()), abs=0.02)
    want = ((np.arange(height) + 0.5) * back.scale_y + back.offset_y) / stride - 0.5
    assert smooth(y, back)[:, 0] == pytest.approx(np.clip(want, 0, y.max()), abs=0.02)


@settings(deadline=None)
@given(st.integers(2, 90), st.integers(2, 90), st.sampled_from(["letterbox", "stretch"]))
def test_corners_lie_on_corners(width, height, way):
    back = fit(PreprocessSpec(64, 96, fit=way), width, height)
    values = random_map(64, 96)
    shown = values[back.visible]
    found = smooth(values, back, corners=True)
    for row in (0, -1):
        for column in (0, -1):
            assert found[row, column] == pytest.approx(shown[row, column], abs=0.05)


@settings(deadline=None)
@given(SIDES, SIDES, st.sampled_from(["letterbox", "stretch"]))
def test_nearest_takes_the_padding_off_and_the_cell_that_a_pixel_begins_in(width, height, way):
    back = fit(PreprocessSpec(64, 96, fit=way), width, height)
    ids = np.random.default_rng(1).integers(0, 20, (64, 96)).astype(np.uint16)
    shown = ids[back.visible]
    rows, columns = (
        np.arange(pixels) * cells // pixels
        for pixels, cells in zip((height, width), shown.shape, strict=True)
    )
    assert (nearest(ids, back) == shown[rows][:, columns]).all()


def test_very_long_images_are_resized():
    back = fit(PreprocessSpec(64, 64, fit="stretch"), 40_000, 3)
    assert smooth(random_map(16, 16), back).shape == (3, 40_000)
    assert nearest(random_map(16, 16), back).shape == (3, 40_000)


def test_the_best_class_is_taken_after_resizing():
    scores = random_map(16 * 5, 24).reshape(5, 16, 24)
    back = fit(PreprocessSpec(64, 96), 300, 200)
    found = ClassMap(best_of(scores), scores).to_source(back).pixels()
    want = np.stack([smooth(each, back) for each in scores]).argmax(axis=0)
    assert (found == want).all()
    kept = ClassMap(best_of(scores), scores, kept=(2,)).to_source(back).pixels()
    assert (kept == np.where(want == 2, 2, NOTHING)).all()


@pytest.mark.parametrize(
    "found",
    [ClassMap(np.zeros((4, 6), np.uint16)), SoftMask(random_map(4, 6)), DepthMap(random_map(4, 6))],
)
def test_a_map_keeps_its_cells_until_pixels_are_asked_for(found):
    assert found.pixels().shape == (4, 6)
    moved = found.to_source(fit(PreprocessSpec(64, 96), 30, 20))
    assert moved.pixels().shape == (20, 30)
    assert moved.arrays[0] is found.arrays[0]
