"""Objects mapped back to their image, and the encodings of their masks as COCO reads them."""

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
from fovea_preprocess.spec import PreprocessSpec

sides = st.integers(1, 2000)
bitmaps = st.tuples(st.integers(0, 9), st.integers(0, 9)).flatmap(
    lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 1))
)
margins = st.integers(0, 3)


@given(st.sampled_from(SPECS), sides, sides, st.integers(0, 2**31))
def test_masks_and_keypoints_there_and_back(spec, width, height, seed):
    """Of windows and points anywhere in the image, and partly beside it."""
    back, random = fit(spec, width, height), np.random.default_rng(seed)
    scale = np.array([back.scale_x, back.scale_y] * 2)
    offset = np.array([back.offset_x, back.offset_y] * 2)
    places, bounds = random.uniform(-0.5, 1.5, (2, 4, 4)) * [width, height, width, height]
    points = random.uniform(-0.5, 1.5, (4, 17, 3)) * [width, height, 0.5]
    windows = tuple(np.zeros((3, 3), np.float32) for _ in places)
    size = (spec.height, spec.width)
    masks = Masks(windows, places * scale + offset, bounds * scale + offset, size)
    inside = points * [*scale[:2], 1] + [*offset[:2], 0]
    whole = np.array([[0, 0, spec.width, spec.height]] * 4, np.float32)
    found = Detections(
        whole, np.ones(4, np.float32), np.zeros(4, np.int32), masks, inside.astype(np.float32)
    ).to_source(back)
    assert found.masks.size == (height, width)
    assert found.masks.places == pytest.approx(places, abs=0.5)
    assert found.masks.bounds == pytest.approx(bounds, abs=0.5)
    assert found.keypoints == pytest.approx(points, abs=0.5)
    assert found.keypoints[..., 2] == pytest.approx(points[..., 2], abs=1e-3)


# An input of 96 pixels, with boxes that leave it.
SMALL = [
    PreprocessSpec(96, 96),
    PreprocessSpec(64, 96, anchor="top-left"),
    PreprocessSpec(96, 64, fit="stretch"),
    PreprocessSpec(64, 64, fit="center-crop", crop_ratio=1.25),
]
BOXES = st.lists(st.tuples(*[st.floats(-20, 120, width=32)] * 4), max_size=12)


@given(st.sampled_from(SMALL), st.integers(1, 300), st.integers(1, 300), BOXES)
def test_a_box_is_kept_exactly_if_some_of_the_image_is_in_it(spec, width, height, sides):
    place = fit(spec, width, height)
    table = np.array(sides, np.float32).reshape(-1, 2, 2)
    boxes = np.concatenate([table.min(axis=1), table.max(axis=1)], axis=1)
    scores = np.linspace(1, 0.5, len(boxes), dtype=np.float32)
    before = Detections(boxes, scores, np.arange(len(boxes), dtype=np.int32))
    mapped, kept = place.boxes_to_source(boxes), before.to_source(place)
    assert (kept.boxes[:, 2:] > kept.boxes[:, :2]).all()
    # Scores and classes stay with their boxes, in their order.
    assert kept.boxes.tolist() == mapped[kept.class_ids].tolist()
    assert kept.scores.tolist() == scores[kept.class_ids].tolist()
    offset = np.array([place.offset_x, place.offset_y])
    size = np.array([place.scaled_width, place.scaled_height])
    shared = np.minimum(boxes[:, 2:], offset + size) - np.maximum(boxes[:, :2], offset)
    assert set(np.flatnonzero((shared > 1e-2).all(axis=1))) <= set(kept.class_ids)
    assert set(kept.class_ids) <= set(np.flatnonzero((shared > -1e-2).all(axis=1)))


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
