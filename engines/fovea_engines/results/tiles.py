"""Cuts images into overlapping tiles, and joins the objects of all tiles.

The method follows SAHI (arXiv 2202.06934). SAHI measures the overlap of two boxes as their
intersection divided by the area of the smaller box, and suppresses one of them if the overlap is
large. There are two differences from SAHI. First, a whole object suppresses an object that the edge
of a tile cuts, even if its score is lower: cut objects often have higher scores. Second, objects of
the same tile do not suppress each other, because the model's head has already done this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results import nms
from fovea_engines.results.detections import Detections, join
from fovea_engines.results.options import PredictOptions, read_tile
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.letterbox import LetterboxMap

MAX_TILES = 1000

MAX_SHARED = 0.5
"""Largest overlap of two objects, measured as intersection divided by the smaller box.

The value is SAHI's default. If a tile cuts an object, the cut box lies inside the whole box that
the next tile shows, so their overlap is near 1.
"""

# Largest distance between a box and the edge of its tile at which the object counts as cut, as a
# fraction of the tile's side. Boxes of cut objects end a few pixels before the edge. If a whole
# object counts as cut by mistake, it is not lost, because the next tile shows the object as well.
_EDGE = 1 / 50

Indices = NDArray[np.intp]


class Tile(NamedTuple):
    """A part of an image. All numbers are in pixels of the image."""

    left: int
    top: int
    width: int
    height: int


def cut(options: PredictOptions, size: tuple[int, int]) -> list[Tile]:
    """Return the tiles for a request with `tile` on an image of (height, width) pixels.

    If there are several tiles, the whole image is added as the last one, to find objects that are
    larger than a tile.

    Raises:
        InvalidOption: there are more than `MAX_TILES`.
    """
    assert options.tile is not None, "only such requests cut"
    height, width = size
    parts = tiles(options.tile, options.overlap, width, height)
    return parts if len(parts) == 1 else [*parts, Tile(0, 0, width, height)]


def crop(pixels: NDArray[np.uint8], tile: Tile) -> NDArray[np.uint8]:
    """Return the pixels of a tile, [height, width, 3], as a view into the image."""
    left, top, width, height = tile
    return pixels[top : top + height, left : left + width]


def tiles(option: str, overlap: float, width: int, height: int) -> list[Tile]:
    """Return the tiles of an image, row by row. A single tile may cover the whole image.

    Args:
        option: text that `read_tile` parses.
        overlap: fraction of a tile's side that overlaps the next tile, 0 to 0.9. The last tile of a
            row or column is moved back into the image, so it overlaps its neighbour by more.
        width: width of the image in pixels.
        height: height of the image in pixels.

    Raises:
        InvalidOption: there are more than `MAX_TILES`.
    """
    across, down = read_tile(option)
    if "x" in option:
        across, down = _side(width, across, overlap), _side(height, down, overlap)
    across, down = min(across, width), min(down, height)
    rows, columns = starts(height, down, overlap), starts(width, across, overlap)
    if len(rows) * len(columns) > MAX_TILES:
        raise InvalidOption(
            f"tile={option} cuts an image of {width} x {height} pixels into "
            f"{len(rows) * len(columns)} tiles, but the maximum is {MAX_TILES}: use larger tiles"
        )
    return [Tile(left, top, across, down) for top in rows for left in columns]


def join_tiles(
    found: Sequence[tuple[Tile, Detections]], size: tuple[int, int], options: PredictOptions
) -> Detections:
    """Join the objects of all tiles of an image of (height, width) pixels.

    Two boxes of different tiles show the same object if their overlap exceeds `MAX_SHARED`. Then
    only one box is kept: the box that no tile cuts, or, if both or neither are cut, the box with
    the higher score. Objects of the same tile are not compared, because the head has already
    suppressed duplicates. Rotated rectangles are compared by their ProbIoU with `options.iou`,
    because the upright boxes of neighbouring rectangles may overlap much.

    Args:
        found: each tile with its objects, in pixels of the tile.
        size: (height, width) of the image in pixels.
        options: options of the request.
    """
    height, width = size
    parts = [
        objects.to_source(
            LetterboxMap(
                width, height, tile.width, tile.height, width, height, -tile.left, -tile.top
            )
        )
        for tile, objects in found
    ]
    whole, tile_of = join(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cut_off = np.concatenate(
        [_cut_off(part, tile, size) for part, (tile, _) in zip(parts, found, strict=True)]
    )
    order = np.lexsort((-whole.scores, cut_off))
    whole, tile_of = whole.take(order), tile_of[order]
    groups = np.zeros_like(whole.class_ids) if options.agnostic else whole.class_ids
    if whole.rotated is not None:
        kept = nms.rotated_greedy(whole.rotated, groups, options.iou, options.max_det)
    else:
        table = nms.add_groups(whole.boxes, groups)

        def overlaps(better: Indices, worse: Indices) -> NDArray[np.bool_]:
            shared = nms.find_overlaps(
                table[:, better], table[:, worse], MAX_SHARED, over_smaller=True
            )
            shared &= tile_of[better, None] != tile_of[worse]
            return shared

        kept = nms.suppress_greedily(len(whole), options.max_det, overlaps)
    return whole.take(kept[np.argsort(-whole.scores[kept], kind="stable")])


def _cut_off(found: Detections, tile: Tile, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which objects are cut by an edge of their tile, bool [n].

    An edge of the tile that is also an edge of the image does not cut objects.
    """
    height, width = size
    x1, y1, x2, y2 = found.boxes.T
    right, bottom = tile.left + tile.width, tile.top + tile.height
    across, down = _EDGE * tile.width, _EDGE * tile.height
    ends: NDArray[np.bool_] = (
        ((tile.left > 0) & (x1 <= tile.left + across))
        | ((tile.top > 0) & (y1 <= tile.top + down))
        | ((right < width) & (x2 >= right - across))
        | ((bottom < height) & (y2 >= bottom - down))
    )
    return ends


def _side(length: int, count: int, overlap: float) -> int:
    """Return the side in pixels of `count` equal tiles that overlap and cover a length."""
    return max(1, ceil(length / (count - (count - 1) * overlap)))


def starts(length: int, side: int, overlap: float) -> list[int]:
    """Return the starts of intervals of `side` that cover a length and overlap.

    `overlap` is the fraction of an interval that overlaps the next interval. The last interval is
    moved back so that it ends at `length`. Therefore it overlaps the interval before it by more.
    """
    step = max(1, side - int(side * overlap))
    found = list(range(0, max(1, length - side), step))
    last = length - side
    return found if found[-1] == last else [*found, last]
