"""Cuts images into overlapping tiles, and joins the objects of all tiles.

The method follows SAHI (arXiv 2202.06934), which suppresses by the overlap over the smaller box.
There are two differences, because a cut object often has a higher score than the whole one. First,
objects that a tile cuts lose to whole objects, whatever their scores are. Second, objects of one
tile do not suppress each other again.
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
"""Largest overlap over the smaller box, the default of SAHI. An object that a tile cuts lies within
the whole object of the next tile.
"""

# Share of a tile's side within which a box counts as cut: boxes of cut objects end a few pixels
# before the edge. A whole object that counts as cut by mistake is not lost, because the next tile
# shows it, too.
_EDGE = 1 / 50

Indices = NDArray[np.intp]


class Tile(NamedTuple):
    """A part of an image, pixels."""

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
        overlap: share of a tile that the next tile repeats, 0 to .9. The last tile of a row or
            column is moved back into the image, and so repeats more.
        width: of the image, pixels.
        height: of the image, pixels.

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
            f"{len(rows) * len(columns)} tiles, and the limit is {MAX_TILES}: use larger tiles"
        )
    return [Tile(left, top, across, down) for top in rows for left in columns]


def join_tiles(
    found: Sequence[tuple[Tile, Detections]], size: tuple[int, int], options: PredictOptions
) -> Detections:
    """Join the objects of all tiles of an image of (height, width) pixels.

    If boxes of different tiles share more than `MAX_SHARED` of the smaller box, one is kept: a box
    that no tile cuts first, then the box with the higher score. Objects of the same tile were
    suppressed before. Rotated rectangles are suppressed with `options.iou`, as in their head,
    because neighbours may share much of their upright boxes.

    Args:
        found: each tile with its objects, in pixels of the tile.
        size: (height, width) of the image, pixels.
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
    """Return which objects end at an edge of their tile that is not the image's, bool [n]."""
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
    """Return the side of `count` equal tiles that overlap and cover a length, pixels."""
    return max(1, ceil(length / (count - (count - 1) * overlap)))


def starts(length: int, side: int, overlap: float) -> list[int]:
    """Return the starts of intervals of `side` that cover a length and overlap.

    Each interval repeats the share `overlap` of the interval before. The last interval is moved
    back to end at `length`, and so repeats more.
    """
    step = max(1, side - int(side * overlap))
    found = list(range(0, max(1, length - side), step))
    last = length - side
    return found if found[-1] == last else [*found, last]
