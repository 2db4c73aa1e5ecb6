"""Computes the cells of a detector's grid, and checks whether boxes fit their cells."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.signature import STRIDES, cells

Floats = NDArray[np.float32]

# Largest median distance between a box and its cell, in cells. In 16 trained and untrained models
# the median is at most 1.05. If corners are read as centres, if units are wrong, or if x and y are
# swapped, the median is 3.4 or more.
_FAR_FROM_CELL = 3.0
# Smallest number of cells for the check of this distance. In a smaller grid, for example of an
# input with 128 x 128 pixels, a box cannot be far from its cell.
_ENOUGH_CELLS = 400
# Smallest number of pairs of neighbouring cells for `movement`. In a pair, both cells find the same
# face with a high score. In trained face detectors, the predicted centre moves by a median of .00
# to .13 cells from one cell of a pair to the other. If the boxes are decoded with the prior boxes
# of another RetinaFace, it moves by .37 to .51 or -.46 to -1.08 cells (26 photographs).
_ENOUGH_PAIRS = 3
# An x coordinate grows in at least this fraction of the steps from cell to cell. In trained and
# random models, an x coordinate grows in .86 to .98 of the steps, and a size in .33 to .53.
_GROWS = 0.7


@lru_cache(maxsize=64)
def grid(
    size: tuple[int, int], strides: tuple[int, ...], per_cell: int = 1
) -> tuple[Floats, Floats]:
    """Return the cell of each box: column and row [n, 2], and stride in pixels [n, 1].

    The boxes are in the order of levels, rows, columns, and boxes of a cell. The levels have the
    order of `strides`. The arrays are float32 and read-only.

    Args:
        size: (height, width) of the input in pixels.
        strides: strides of the levels in pixels.
        per_cell: number of boxes of each cell.
    """
    places, steps = [], []
    for stride in strides:
        height, width = -(-size[0] // stride), -(-size[1] // stride)
        row, column = np.divmod(np.arange(height * width), width)
        places.append(np.stack([column, row], axis=1))
        steps.append(np.full((height * width, 1), stride))
    tables = tuple(
        np.concatenate(parts).astype(np.float32).repeat(per_cell, axis=0)
        for parts in (places, steps)
    )
    for table in tables:
        table.flags.writeable = False
    return tables[0], tables[1]


def no_grid(boxes: int, size: tuple[int, int], per_cell: int) -> str | None:
    """Return a reason if no usual grid of (height, width) pixels has this number of boxes."""
    if any(per_cell * cells(size, strides) == boxes for strides in STRIDES):
        return None
    return f"{boxes} boxes do not fit the usual grids of an input of {size[0]}x{size[1]}"


def off_cells(centres: Floats, size: tuple[int, int], per_cell: int) -> str | None:
    """Return a reason if most centres are far from their own cells.

    The boxes must be in the order of levels, anchors and cells, as in YOLOv5. If the number of
    boxes fits no known grid, return None.

    Args:
        centres: centre of each box, [boxes, 2] in pixels.
        size: (height, width) of the input in pixels.
        per_cell: number of boxes of each cell.
    """
    strides = next((one for one in STRIDES if per_cell * cells(size, one) == len(centres)), None)
    if strides is None or len(centres) < _ENOUGH_CELLS:
        return None
    levels = [grid(size, (stride,)) for stride in strides]
    places, steps = (
        np.concatenate([np.tile(level[part], (per_cell, 1)) for level in levels]) for part in (0, 1)
    )
    values = np.asarray(centres, np.float32)
    off = (np.abs(values - (places + 0.5) * steps) / steps).max(axis=1)
    middle = np.median(off[np.isfinite(off)]) if np.isfinite(off).any() else 0
    if middle > _FAR_FROM_CELL:
        return f"most boxes are {middle:.2g} cells away from their grid cell"
    return None


def off_grid(boxes: NDArray[Any], *, corners: bool) -> str | None:
    """Return a reason if boxes [boxes, 4] are not corners or not centres, as `corners` states.

    The boxes must be in the order of a grid's cells. From each cell to the next, the x coordinate
    of centres and of corners grows. A width does not grow.
    """
    left, top, right = (_growth(boxes[:, at]) > _GROWS for at in (0, 1, 2))
    if top:
        return "column 1 is an x coordinate, not y: it grows from cell to cell"
    if right and not corners:
        return "column 2 is an x coordinate, not a width: it grows from cell to cell"
    if left != right and corners:
        return (
            f"column {2 if left else 0} is not an x coordinate: it does not grow from cell to cell"
        )
    return None


def no_offsets(columns: NDArray[Any], first: int) -> str | None:
    """Return a reason if one of the columns [boxes, n] is an x coordinate instead of an offset.

    An x coordinate grows from cell to cell.
    """
    number = _growing(columns)
    if number is None:
        return None
    return (
        f"column {first + number} is an x coordinate, not an offset in a cell: it grows from cell "
        "to cell"
    )


def no_class(columns: NDArray[Any], first: int) -> str | None:
    """Return a reason if one of the columns [boxes, n] is an x coordinate, not a probability.

    An x coordinate grows from cell to cell.
    """
    number = _growing(columns)
    if number is None:
        return None
    return (
        f"column {first + number} is an x coordinate, not a class score: it grows from cell to cell"
    )


def _growing(columns: NDArray[Any]) -> int | None:
    return next((at for at, one in enumerate(columns.T) if _growth(one) > _GROWS), None)


def movement(
    centres: Floats,
    found: NDArray[np.intp],
    size: tuple[int, int],
    strides: tuple[int, ...],
    per_cell: int,
) -> float | None:
    """Return the median distance in cells between the centres that neighbouring cells predict.

    Neighbouring cells that find the same object should predict the same centre, so the distance
    should be 0. If boxes are decoded with prior boxes of wrong sides, the distance differs from 0:
    with sides of k times the right sides, it is 1 - k.

    Args:
        centres: centre of each box, [n, 2] in pixels.
        found: index of each box in the grid.
        size: (height, width) of the input in pixels.
        strides: strides of the levels in pixels.
        per_cell: number of boxes of each cell.

    Returns:
        The median distance. If too few of the boxes have neighbours, return None.
    """
    places, steps = (table[found] for table in grid(size, strides, per_cell))
    kinds = np.concatenate([steps, (found % per_cell)[:, None], places], axis=1).astype(int)
    at = {tuple(kind): index for index, kind in enumerate(kinds.tolist())}
    moves = [
        (centres[other, axis] - centres[index, axis]) / stride
        for (stride, anchor, x, y), index in at.items()
        for axis, place in enumerate(((x + 1, y), (x, y + 1)))
        if (other := at.get((stride, anchor, *place))) is not None
    ]
    return float(np.median(moves)) if len(moves) >= _ENOUGH_PAIRS else None


def moving(moved: float | None, most: float = 0.5) -> str | None:
    """Return a reason if the result of `movement` is more than `most`, or less than -`most`."""
    if moved is None or abs(moved) <= most:
        return None
    return (
        "neighbouring cells predict different places for the same object: its centre moves by "
        f"{moved:.2f} cells from one cell to the next"
    )


def _growth(column: NDArray[Any]) -> float:
    return float((np.diff(np.asarray(column, np.float32)) > 0).mean()) if len(column) > 1 else 0.0


def around(points: Floats, distances: Floats) -> Floats:
    """Return corners [n, 4] from points [n, 2] and distances left, top, right, bottom [n, 4]."""
    return np.concatenate([points - distances[:, :2], points + distances[:, 2:]], axis=1)
