"""Tiles: where they lie, and that objects and pictures of them are joined as those of an image."""

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import Masks
from fovea_engines.results.mosaic import Mosaic
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.tiles import Tile, crop, cut, join_tiles, tiles
from fovea_preprocess.errors import InvalidOption

lengths = st.integers(1, 4000)
overlaps = st.floats(0, 0.9)
options = st.one_of(
    st.integers(32, 2000).map(str),
    st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda pair: f"{pair[0]}x{pair[1]}"),
)


@given(options, overlaps, st.integers(1, 1200), st.integers(1, 1200))
def test_tiles_cover_the_image_and_have_one_size(option, overlap, width, height):
    covered = np.zeros((height, width), np.bool_)
    try:
        found = tiles(option, overlap, width, height)
    except InvalidOption:  # too many
        reject()
    for tile in found:
        assert tile.left >= 0
        assert tile.top >= 0
        assert crop(covered, tile).shape == (tile.height, tile.width)
        crop(covered, tile)[...] = True
    assert covered.all()
    assert len({tile[2:] for tile in found}) == 1
    assert len(set(found)) == len(found)


def test_sides_and_grids():
    assert tiles("640", 0.2, 1000, 640) == [Tile(0, 0, 640, 640), Tile(360, 0, 640, 640)]
    assert tiles("640", 0.2, 600, 500) == [Tile(0, 0, 600, 500)]
    assert tiles("2x1", 0.0, 1000, 640) == [Tile(0, 0, 500, 640), Tile(500, 0, 500, 640)]
    assert [tile.left for tile in tiles("3x2", 0.2, 1300, 700)] == [0, 400, 800] * 2
    [*parts, last] = cut(PredictOptions(tile="2x2"), (480, 640))
    assert len(parts) == 4
    assert last == Tile(0, 0, 640, 480)


@pytest.mark.parametrize(
    "tile", ["", "0", "31", "x", "2x", "0x2", "65x2", "640.5", "-640", "9" * 99]
)
def test_other_tiles_are_refused(tile):
    with pytest.raises(InvalidOption):
        PredictOptions(tile=tile)


def objects(*boxes, scores=None, **parts):
    count = len(boxes)
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores or [0.5] * count, np.float32),
        np.zeros(count, np.int32),
        **parts,
    )


@pytest.mark.parametrize("end", [100, 98.5])
def test_a_cut_object_gives_way_to_the_whole_one(end):
    """Boxes of cut objects end some pixels before the edge, as of the people of bus.jpg at 400."""
    left, right = Tile(0, 0, 100, 100), Tile(80, 0, 100, 100)
    whole = objects((5, 10, 45, 50), scores=[0.6])
    part = objects((85, 10, end, 50), scores=[0.9])
    found = join_tiles([(left, part), (right, whole)], (100, 180), PredictOptions())
    assert found.boxes.tolist() == [[85, 10, 125, 50]]
    assert found.scores.tolist() == [pytest.approx(0.6)]


def test_what_one_tile_tells_apart_stays_apart():
    tile = Tile(0, 0, 100, 100)
    found = objects((10, 10, 90, 90), (20, 20, 50, 60), scores=[0.9, 0.5])
    assert len(join_tiles([(tile, found)], (100, 100), PredictOptions())) == 2
    nothing = join_tiles([(tile, objects())] * 2, (100, 100), PredictOptions())
    assert nothing.boxes.shape == (0, 4)


def test_classes_do_not_suppress_each_other_unless_asked():
    tile = Tile(0, 0, 100, 100)
    one = objects((0, 0, 50, 50))
    other = Detections(one.boxes, one.scores, one.class_ids + 1)
    parts = [(tile, one), (tile, other)]
    assert len(join_tiles(parts, (100, 100), PredictOptions())) == 2
    assert len(join_tiles(parts, (100, 100), PredictOptions(agnostic=True))) == 1
    assert len(join_tiles(parts, (100, 100), PredictOptions(max_det=1))) == 1


def test_masks_and_keypoints_move_with_their_tile():
    window = np.ones((4, 4), np.float32)
    box = np.array([[10.0, 20, 30, 40]])
    masks = Masks((window,), box, box, (100, 100))
    points = np.array([[[12, 22, 0.5]]], np.float32)
    found = objects((10, 20, 30, 40), masks=masks, keypoints=points)
    whole = join_tiles([(Tile(50, 60, 100, 100), found)], (300, 200), PredictOptions())
    assert whole.boxes.tolist() == [[60, 80, 80, 100]]
    assert whole.keypoints.tolist() == [[[62, 82, 0.5]]]
    bitmap = whole.masks.bitmap(0)
    assert bitmap.shape == (300, 200)
    assert bitmap.sum() == 400
    assert bitmap[80:100, 60:80].all()


SIDE = (32, 48)


def joined(pixels, make, size):
    mosaic = Mosaic(size, SIDE)
    found = []
    for number, row in enumerate(mosaic.rows):
        parts = [mosaic.cut(pixels, tile) for tile in row]
        assert {part.shape for part in parts} == {(*SIDE, 3)}
        found = [NewImage(make(part / np.float32(255))) for part in parts]
        if mosaic.tiled:
            mosaic.add(number, found)
    return mosaic.size_of(found[0]), mosaic.picture(found, pixels)


@pytest.mark.parametrize("size", [(32, 48), (20, 30), (33, 49), (64, 20), (100, 211), (1, 500)])
@pytest.mark.parametrize("factor", [1, 3])
def test_pictures_of_tiles_are_that_of_the_image(size, factor):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)

    def make(part):
        return part.repeat(factor, axis=0).repeat(factor, axis=1)

    said, picture = joined(pixels, make, size)
    want = make(pixels)
    assert said == picture.values.shape[:2] == want.shape[:2]
    np.testing.assert_array_equal(picture.levels, want)


def test_tiles_fade_into_each_other_away_from_their_edges():
    """Each tile is brighter than the one before, and nonsense at its edges."""
    size, number = (32, 200), iter(range(1, 100))

    def make(part):
        values = np.full((*SIDE, 1), 0.1 * next(number), np.float32)
        values[:, :1] = values[:, -1:] = 0
        return values

    _, picture = joined(np.zeros((*size, 3), np.uint8), make, size)
    steps = np.diff(picture.levels[5, 1:-1, 0].astype(int))
    assert steps.min() >= 0
    assert steps.max() <= 8
    assert steps.sum() > 90


def test_an_image_that_fits_keeps_its_numbers():
    values = np.random.default_rng(0).normal(0.5, 0.5, (*SIDE, 3)).astype(np.float32)
    _, picture = joined(np.zeros((10, 20, 3), np.uint8), lambda part: values, (10, 20))
    np.testing.assert_array_equal(picture.values, values[:10, :20])


def test_a_small_image_is_reflected_beyond_its_edge():
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    mosaic = Mosaic((4, 5), SIDE)
    [[tile]] = mosaic.rows
    part = mosaic.cut(pixels, tile)
    np.testing.assert_array_equal(part[:4, :5], pixels)
    np.testing.assert_array_equal(part[4, :5], pixels[3])
    np.testing.assert_array_equal(part[:4, 5], pixels[:, 4])
