"""Cuts an image into tiles of the model's input size, and joins the output images of the tiles.

Tiles overlap. In the middle half of an overlap, the output of one tile fades into the output of the
next tile. The outer quarters use one output only: near its edge an output is worse, because the
model did not see the pixels beyond the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.new_image import NewImage, Pixels
from fovea_engines.results.tiles import Tile, crop, starts

OVERLAP = 0.15
"""Fraction of a tile's side that overlaps the next tile."""

_WHITE = 255

Floats = NDArray[np.float32]


class Mosaic:
    """Joins the outputs of tiles to one image, one row of tiles after the other.

    To save memory, only the last row of tiles is kept as float32. All rows above are uint8 levels.

    Attributes:
        rows: tiles, row by row. An image that fits into one tile has a single tile, which is padded
            with a reflection of the image.
    """

    def __init__(self, size: tuple[int, int], side: tuple[int, int]) -> None:
        """Plan the tiles.

        Args:
            size: (height, width) of the image in pixels.
            side: (height, width) of the model's input in pixels.
        """
        self._size, self._side = size, side
        self._tops, self._lefts = (
            starts(max(length, one), one, OVERLAP) for length, one in zip(size, side, strict=True)
        )
        self.rows = [
            [Tile(left, top, side[1], side[0]) for left in self._lefts] for top in self._tops
        ]
        self._levels: Pixels | None = None
        self._rest: Floats | None = None

    @property
    def tiled(self) -> bool:
        """Return whether the image has several tiles."""
        return len(self._tops) * len(self._lefts) > 1

    def cut(self, pixels: Pixels, tile: Tile) -> Pixels:
        """Return the pixels of one tile of an image, uint8 [height, width, 3]."""
        part = crop(pixels, tile)
        below, right = tile.height - part.shape[0], tile.width - part.shape[1]
        if below or right:
            padded = cv2.copyMakeBorder(part, 0, below, 0, right, cv2.BORDER_REFLECT)
            return np.asarray(padded, np.uint8)
        return np.ascontiguousarray(part)

    def add(self, number: int, found: Sequence[NewImage]) -> None:
        """Add the outputs of the next row of tiles, from left to right.

        Args:
            number: index of the row, from 0.
            found: the output of each tile.
        """
        height, width, channels = found[0].values.shape
        factor = height // self._side[0]
        if self._levels is None:
            whole = [max(a, b) * factor for a, b in zip(self._size, self._side, strict=True)]
            self._levels = np.empty((*whole, channels), np.uint8)
        band = np.zeros((height, self._levels.shape[1], channels), np.float32)
        shares = _shares([left * factor for left in self._lefts], width)
        for left, share, one in zip(self._lefts, shares, found, strict=True):
            place = band[:, left * factor : left * factor + width]
            place += one.numbers * share[:, None]
        band *= _shares([top * factor for top in self._tops], height)[number][:, None, None]
        if self._rest is not None:
            band[: len(self._rest)] += self._rest
        top = self._tops[number] * factor
        below = self._tops[number + 1] * factor if number + 1 < len(self._tops) else top + height
        done, self._rest = band[: below - top], band[below - top :].copy()
        # Round in place to save memory: a row of tiles may be as large as the whole output image.
        done *= _WHITE
        self._levels[top:below] = done.round(out=done).clip(0, _WHITE, out=done)

    def size_of(self, found: NewImage) -> tuple[int, int]:
        """Return the (height, width) of the whole output image, given the output of one tile."""
        factor = found.values.shape[0] // self._side[0]
        return self._size[0] * factor, self._size[1] * factor

    def picture(self, found: Sequence[NewImage], pixels: Pixels) -> NewImage:
        """Return the output for the whole image, in colour.

        Args:
            found: outputs of the last row of tiles, or of the only tile.
            pixels: the input image, uint8 [h, w, 3]. Its colours are added to a luma output.
        """
        values = found[0].values if self._levels is None else self._levels
        factor = values.shape[0] // max(self._size[0], self._side[0])
        part = values[: self._size[0] * factor, : self._size[1] * factor]
        return replace(found[0], values=part).add_colours(pixels)


def _shares(first: Sequence[int], length: int) -> Floats:
    """Return the weight of each interval at each of its positions, float32 [n, length].

    The intervals overlap. Each has the length `length`, and `first` lists their first positions. At
    each position the weights of all intervals add up to 1.
    """
    places = np.add.outer(np.array(first, np.float32), np.arange(length, dtype=np.float32) + 0.5)
    found: Floats = np.ones_like(places)
    for at, (one, other) in enumerate(pairwise(first)):
        both = one + length - other
        middle, fades = other + both / 2, both / 2
        rising = np.clip((places[at : at + 2] - middle) / fades + 0.5, 0, 1)
        found[at] *= 1 - rising[0]
        found[at + 1] *= rising[1]
    return found
