"""Masks: geometry that is undone, and run lengths that pycocotools decodes to the same pixels."""

import base64

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.preprocess.test_letterbox import SPECS
from tests.run_lengths import decoded

from fovea_client import MaskFile
from fovea_client._json import read
from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import encode_masks, polygons, run_lengths
from fovea_engines.results.masks import Bitmap, Masks, whole_masks
from fovea_preprocess.letterbox import fit

sides = st.integers(1, 2000)
bitmaps = st.tuples(st.integers(0, 9), st.integers(0, 9)).flatmap(
    lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 1))
)
margins = st.integers(0, 3)


@given(st.sampled_from(SPECS), sides, sides, st.integers(0, 2**31))
def test_places_and_bounds_there_and_back(spec, width, height, seed):
    """Of masks with windows anywhere in the image, and partly beside it."""
    back, random = fit(spec, width, height), np.random.default_rng(seed)
    scale = np.array([back.scale_x, back.scale_y] * 2)
    offset = np.array([back.offset_x, back.offset_y] * 2)
    places, bounds = random.uniform(-0.5, 1.5, (2, 4, 4)) * [width, height, width, height]
    windows = tuple(np.zeros((3, 3), np.float32) for _ in places)
    inside = Masks(
        windows, places * scale + offset, bounds * scale + offset, (spec.height, spec.width)
    )
    found = inside.to_source(back)
    assert found.size == (height, width)
    assert found.places == pytest.approx(places, abs=0.5)
    assert found.bounds == pytest.approx(bounds, abs=0.5)


@given(st.sampled_from(SPECS), sides, sides, st.integers(0, 2**31))
def test_keypoints_there_and_back(spec, width, height, seed):
    back, random = fit(spec, width, height), np.random.default_rng(seed)
    points = random.uniform(-0.5, 1.5, (3, 17, 3)) * [width, height, 0.5]
    inside = points.copy()
    inside[..., :2] *= back.scale_x, back.scale_y
    inside[..., :2] += back.offset_x, back.offset_y
    objects = Detections(
        np.array([[0, 0, spec.width, spec.height]] * 3, np.float32),
        np.ones(3, np.float32),
        np.zeros(3, np.int32),
        keypoints=inside.astype(np.float32),
    )
    found = objects.to_source(back).keypoints
    assert found.shape == (3, 17, 3)
    assert found[..., :2] == pytest.approx(points[..., :2], abs=0.5)
    assert found[..., 2] == pytest.approx(points[..., 2], abs=1e-3)


@given(bitmaps, margins, margins, margins, margins)
def test_run_lengths_are_the_pixels(pixels, left, top, right, bottom):
    """Also of runs that go on from column to column, of nothing, and at the edge of the image."""
    height, width = pixels.shape
    size = max(top + height + bottom, 1), max(left + width + right, 1)
    whole = np.zeros(size, np.uint8)
    whole[top : top + height, left : left + width] = pixels
    found = run_lengths(Bitmap(left, top, pixels), size)
    assert found["size"] == list(size)
    assert (decoded(found) == whole).all()


def test_a_full_mask_is_one_run():
    full = np.ones((7, 5), np.uint8)
    assert (decoded(run_lengths(Bitmap(0, 0, full), full.shape)) == 1).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 20), st.integers(0, 20))
def test_polygons_go_around_the_pixels(width, height, left, top):
    found = polygons(Bitmap(left, top, np.ones((height, width), np.uint8)))
    if min(width, height) < 2:
        assert found == []
        return
    [outline] = found
    corners = np.array(outline).reshape(-1, 2)
    assert corners.min(axis=0).tolist() == [left + 0.5, top + 0.5]
    assert corners.max(axis=0).tolist() == [left + width - 0.5, top + height - 0.5]


def test_masks_of_the_whole_input_are_resized_as_bilinear_does():
    """The same as OpenCV's resize of the whole map, where that rounds no coordinate."""
    values = np.random.default_rng(5).normal(size=(2, 12, 16)).astype(np.float32)
    masks = whole_masks(values, (96, 128)).to_source(fit(SPECS[4], 320, 240))
    masks = Masks(masks.windows, *(np.array([[0, 0, 320, 240]] * 2, float),) * 2, (240, 320))
    for index, window in enumerate(values):
        resized = cv2.resize(window, (320, 240), interpolation=cv2.INTER_LINEAR)
        have, want = masks.bitmap(index).astype(bool), resized > 0
        assert (have != want)[np.abs(resized) > 0.02].sum() == 0


def test_png_files_are_the_pixels():
    values = np.random.default_rng(6).normal(size=(1, 30, 40)).astype(np.float32)
    masks = whole_masks(values, (30, 40))
    bounds = np.array([[0, 0, 40, 30], [7.5, 3, 21, 20], [8, 8, 8, 8]], float)
    masks = Masks(masks.windows * 3, masks.places.repeat(3, axis=0), bounds, masks.size)
    for index, mask in enumerate(encode_masks(masks, "png")):
        file = np.frombuffer(base64.b64decode(mask["png"]), np.uint8)
        part = cv2.imdecode(file, cv2.IMREAD_GRAYSCALE)
        assert part.shape == [(30, 40), (17, 13), (1, 1)][index]
        whole = np.zeros((30, 40), np.uint8)
        (height, width), left, top = part.shape, mask["left"], mask["top"]
        whole[top : top + height, left : left + width] = part
        assert (whole == 255 * masks.bitmap(index)).all()
        assert (read(MaskFile, mask).pixels == masks.bitmap(index)).all()


@given(st.integers(-50, 150), st.integers(-50, 150))
def test_a_mask_beyond_the_image_is_cut_off(left, top):
    window = np.ones((4, 4), np.float32)
    place = np.array([[left, top, left + 60, top + 60]], float)
    masks = Masks((window,), place, place, (100, 100))
    whole = np.zeros((100, 100), np.uint8)
    whole[max(top, 0) : max(top + 60, 0), max(left, 0) : max(left + 60, 0)] = 1
    assert (masks.bitmap(0) == whole).all()
    [encoded] = encode_masks(masks, "rle")
    assert (decoded(encoded) == whole).all()
