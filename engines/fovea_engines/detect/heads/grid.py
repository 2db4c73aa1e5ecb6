"""Places the cells of a detector's grid, and boxes around them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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


def around(points: Floats, distances: Floats) -> Floats:
    """Return corners [n, 4] of boxes by distances left, top, right, bottom [n, 4] of points."""
    return np.concatenate([points - distances[:, :2], points + distances[:, 2:]], axis=1)
