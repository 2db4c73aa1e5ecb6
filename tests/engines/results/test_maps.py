"""Maps: resized to the pixels of an image as OpenCV and torch do, and as files."""

import io

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fovea_client.png import read_grey, read_levels
from fovea_engines.results.colours import colour
from fovea_engines.results.map_encoding import NOTHING, class_png, depth_png, mask_png, picture_png
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask, areas, best_of
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


SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 40))
SEEDS = st.integers(0, 99)


def opened(data):
    image = Image.open(io.BytesIO(data))
    assert (np.asarray(image) == read_grey(data)).all()
    return image


@given(SHAPES, SEEDS)
def test_classes_are_indices_in_the_colours_of_the_drawings(shape, seed):
    """Nothing is the greatest index, and many classes take 16 bits."""
    ids = np.random.default_rng(seed).integers(0, 255, shape).astype(np.uint16)
    ids[0, -1] = NOTHING
    image = opened(class_png(ids))
    assert image.mode == "P"
    assert (np.asarray(image) == np.where(ids == NOTHING, 255, ids)).all()
    assert image.size == (1, 1) or image.convert("RGB").getpixel((0, 0)) == colour(int(ids[0, 0]))
    ids[-1, 0] = 255
    image = opened(class_png(ids))
    assert image.mode == "I;16"
    assert (np.asarray(image) == ids).all()


@given(SHAPES, SEEDS)
def test_areas_are_the_pixels_of_each_class_and_their_share(shape, seed):
    ids = np.random.default_rng(seed).choice([0, 3, 300, NOTHING], shape).astype(np.uint16)
    found = areas(ids)
    counts = {n: int((ids == n).sum()) for n in (0, 3, 300) if (ids == n).any()}
    assert {one.class_id: one.pixels for one in found} == counts
    assert [one.pixels for one in found] == sorted(counts.values(), reverse=True)
    assert [one.share for one in found] == pytest.approx([one.pixels / ids.size for one in found])


@settings(max_examples=40)
@given(SHAPES, SEEDS, st.sampled_from([0, 1e-3, 100]))
def test_a_mask_has_255_steps_and_a_depth_16_bits(shape, seed, size):
    """A depth is a level times the scale plus the offset."""
    random = np.random.default_rng(seed)
    values = random.uniform(size=shape).astype(np.float32)
    assert np.asarray(opened(mask_png(values))) / 255 == pytest.approx(values, abs=0.5 / 254)
    values = 5 + size * random.normal(size=shape).astype(np.float32)
    file = depth_png(values)
    found = np.asarray(opened(file.png), np.float64) * file.scale + file.offset
    assert found == pytest.approx(values, abs=float(np.ptp(values)) / 65535 + 1e-6)


@given(SHAPES, st.sampled_from([1, 3]))
def test_a_picture_keeps_its_levels(shape, channels):
    levels = np.random.default_rng(0).integers(0, 256, (*shape, channels), np.uint8)
    found = read_levels(picture_png(levels)).reshape(levels.shape)
    np.testing.assert_array_equal(found, levels)


def test_files_of_others_are_refused():
    for data in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(ValueError, match="PNG"):
            read_grey(data)
    for mode in ("RGB", "LA"):
        file = io.BytesIO()
        Image.new(mode, (4, 4)).save(file, "PNG")
        with pytest.raises(ValueError, match=r"is not|three channels"):
            read_grey(file.getvalue())
