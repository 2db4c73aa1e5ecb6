"""Places the cells of a detector's grid, and boxes around them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.signature import STRIDES, cells

Floats = NDArray[np.float32]

# Of 16 models, trained and not, the median is at most 1.05; with corners for centres, other units
# or x and y swapped it is 3.4 and more.
_FAR_FROM_CELL = 3.0
# Of fewer, as an input of 128 x 128 pixels has, none is far.
_ENOUGH_CELLS = 400
# Of so many pairs of neighbouring cells that are sure of a face, the median moves by .00 to .13
# cells in trained detectors, and with another RetinaFace's priors by .37 to .51 or -.46 to -1.08
# (26 photographs).
_ENOUGH_PAIRS = 3
# x grows in .86 to .98 of all steps of trained and random models, and sizes in .33 to .53.
_GROWS = 0.7


@lru_cache(maxsize=64)
def grid(
    size: tuple[int, int], strides: tuple[int, ...], per_cell: int = 1
) -> tuple[Floats, Floats]:
    """Return column and row [n, 2] and stride [n, 1], pixels, of each box of a grid.

    Levels follow each other in the order of their strides, and each goes row by row. The boxes of a
    cell are neighbours. The arrays are read-only.

    Args:
        size: (height, width) of the input, pixels.
        strides: of the levels, pixels.
        per_cell: boxes of each cell.
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
    """Exclude a number of boxes that no usual grid of (height, width) pixels has."""
    if any(per_cell * cells(size, strides) == boxes for strides in STRIDES):
        return None
    return f"{boxes} boxes are those of no grid of {size[0]}x{size[1]}"


def off_cells(centres: Floats, size: tuple[int, int], per_cell: int) -> str | None:
    """Exclude centres of boxes in pixels, [boxes, 2], of which most are far from their own cells.

    The boxes of a cell's anchors lie a level of cells apart, as in YOLOv5. Boxes that are none of a
    known grid's show nothing.
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
        return (
            f"boxes are far from the cells of the grid that find them: most by {middle:.2g} cells"
        )
    return None


def off_grid(boxes: NDArray[Any], *, corners: bool) -> str | None:
    """Exclude boxes [boxes, 4], in the order of a grid's cells, of another form.

    From cell to cell of a row, x grows, of centres as of corners, and a width does not.
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
    """Exclude offsets within cells, [boxes, n], that grow from cell to cell as an x does."""
    number = _growing(columns)
    if number is None:
        return None
    return f"column {first + number} is no offset in a cell: it grows from cell to cell, as x does"


def no_class(columns: NDArray[Any], first: int) -> str | None:
    """Exclude probabilities, [boxes, n], of which one grows from cell to cell as an x does."""
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
    """Return how far centres [n, 2] of boxes move from a cell to the next, in cells: the median.

    Neighbouring cells that are sure of an object find the same, so a centre stays where it is. It
    follows the cells, or runs ahead of them, where the sides of priors are not those of training:
    with priors of k times their sides it moves by 1 - k. None if too few of the boxes `found`, by
    their indices in the grid, are neighbours.
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
    """Exclude centres that go with the cells that find them, by their `movement`."""
    if moved is None or abs(moved) <= most:
        return None
    return (
        "neighbouring cells find the same object in other places: from cell to cell its centre "
        f"moves by {moved:.2f} of a cell"
    )


def _growth(column: NDArray[Any]) -> float:
    return float((np.diff(np.asarray(column, np.float32)) > 0).mean()) if len(column) > 1 else 0.0


def around(points: Floats, distances: Floats) -> Floats:
    """Return corners [n, 4] of boxes by distances left, top, right, bottom [n, 4] of points."""
    return np.concatenate([points - distances[:, :2], points + distances[:, 2:]], axis=1)
