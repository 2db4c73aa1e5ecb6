"""Tiles of an image whose pictures are joined: nothing shows where they meet."""

import numpy as np
import pytest

from fovea_engines.results.mosaic import Mosaic
from fovea_engines.results.new_image import NewImage

SIDE = (32, 48)


def joined(pixels, make, size):
    mosaic = Mosaic(size, SIDE)
    found = []
    for number, tiles in enumerate(mosaic.rows):
        parts = [mosaic.cut(pixels, tile) for tile in tiles]
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
