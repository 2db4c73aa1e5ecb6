"""Computes the cells of a detector's grid, boxes around them, and checks of boxes against them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.signature import STRIDES, cells

Floats = NDArray[np.float32]

# Largest median distance of a box from its cell, in cells. 16 models, trained and untrained, have
# at most 1.05. If corners are read as centres, units are wrong, or x and y are swapped, it is 3.4
# or more.
_FAR_FROM_CELL = 3.0
# Smallest number of cells for this check. In smaller grids, such as for an input of 128 x 128
# pixels, no box can be far from its cell.
_ENOUGH_CELLS = 400
# Smallest number of pairs of neighbouring cells that both find a face with high scores. Between
# such cells, the median centre moves by .00 to .13 cells in trained detectors. With the priors of
# another RetinaFace it moves by .37 to .51 or -.46 to -1.08 cells (26 photographs).
_ENOUGH_PAIRS = 3
# Share of steps to the next cell in which a column must grow to count as an x. Trained and random
# models have .86 to .98 for x, and .33 to .53 for sizes.
_GROWS = 0.7


@lru_cache(maxsize=64)
def grid(
    size: tuple[int, int], strides: tuple[int, ...], per_cell: int = 1
) -> tuple[Floats, Floats]:
    """Return column and row [n, 2] and stride [n, 1] in pixels of the cell of each box.

    Levels are in the order of `strides`, and each goes row by row. The boxes of a cell are
    neighbours. The arrays are float32 and read-only.

    Args:
        size: (height, width) of the input, pixels.
        strides: strides of the levels, pixels.
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
    return f"no grid of {size[0]}x{size[1]} has {boxes} boxes"


def off_cells(centres: Floats, size: tuple[int, int], per_cell: int) -> str | None:
    """Return a reason if most centres are far from their own cells.

    Boxes are in the order level, anchor, cell, as in YOLOv5. If the number of boxes fits no known
    grid, nothing can be checked.

    Args:
        centres: [boxes, 2], pixels.
        size: (height, width) of the input, pixels.
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
    """Return a reason if boxes [boxes, 4], in the order of a grid's cells, have another form.

    From cell to cell in a row, x grows, both of centres and of corners. A width does not grow.
    """
    left, top, right = (_growth(boxes[:, at]) > _GROWS for at in (0, 1, 2))
    if top:
        return "column 1 is no y: it grows from cell to cell, as x does"
    if right and not corners:
        return "column 2 is no width: it grows from cell to cell of the grid, as x does"
    if left != right and corners:
        return f"column {2 if left else 0} is no x: it does not grow from cell to cell of the grid"
    return None


def no_offsets(columns: NDArray[Any], first: int) -> str | None:
    """Return a reason if an offset within cells, [boxes, n], grows from cell to cell as x does."""
    number = _growing(columns)
    if number is None:
        return None
    return f"column {first + number} is no offset in a cell: it grows from cell to cell, as x does"


def no_class(columns: NDArray[Any], first: int) -> str | None:
    """Return a reason if a probability, [boxes, n], grows from cell to cell as x does."""
    number = _growing(columns)
    if number is None:
        return None
    return f"column {first + number} is no class: it grows from cell to cell, as x does"


def _growing(columns: NDArray[Any]) -> int | None:
    return next((at for at, one in enumerate(columns.T) if _growth(one) > _GROWS), None)


def movement(
    centres: Floats,
    found: NDArray[np.intp],
    size: tuple[int, int],
    strides: tuple[int, ...],
    per_cell: int,
) -> float | None:
    """Return the median movement of box centres from a cell to the next, in cells, or None.

    Neighbouring cells that find one object should return the same centre, so it does not move. With
    prior boxes of other sides than in training, it follows the cells or moves ahead of them: with
    priors of k times the right sides, it moves by 1 - k.

    Args:
        centres: [n, 2], pixels.
        found: index of each box in the grid.
        size: (height, width) of the input, pixels.
        strides: strides of the levels, pixels.
        per_cell: number of boxes of each cell.

    Returns:
        None if too few of the boxes have neighbours.
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
    """Return a reason if centres move with their cells by more than `most`, see `movement`."""
    if moved is None or abs(moved) <= most:
        return None
    return (
        "neighbouring cells find the same object in other places: from cell to cell its centre "
        f"moves by {moved:.2f} of a cell"
    )


def _growth(column: NDArray[Any]) -> float:
    return float((np.diff(np.asarray(column, np.float32)) > 0).mean()) if len(column) > 1 else 0.0


def around(points: Floats, distances: Floats) -> Floats:
    """Return corners [n, 4] from points [n, 2] and distances left, top, right, bottom [n, 4]."""
    return np.concatenate([points - distances[:, :2], points + distances[:, 2:]], axis=1)
