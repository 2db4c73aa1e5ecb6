"""Sorts the rows of an engine's outputs into the order of the source model's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.reference import Outputs
from fovea_engines.session import Array

# Largest difference at which two rows in the same position are a pair, as a fraction of the largest
# value.
_NEAR = 1e-3


def align(want: Outputs, have: Outputs, ranked: Set[str]) -> Outputs:
    """Return the engine's outputs with each row in the position of the source's closest row.

    If two rows have almost equal scores, a top-k operator may sort them differently on another
    runtime. A threshold may also keep one row more. Outputs with the same number of rows, [1, k,
    ...] or [k, ...], are sorted together. A row that the engine does not have is replaced by zeros.
    A row that the source model does not have is dropped.

    Args:
        want: outputs of the source model.
        have: outputs of the engine.
        ranked: names of the outputs that a top-k operator or a suppression has sorted.
    """
    found = dict(have)
    for axis, names in _groups(want, have, ranked):
        ours, theirs = (
            {name: np.moveaxis(arrays[name], axis, 0) for name in names} for arrays in (want, have)
        )
        partners = _partners(_table(ours, ours), _table(theirs, ours))
        for name in names:
            rows = np.zeros_like(ours[name], dtype=theirs[name].dtype)
            rows[partners >= 0] = theirs[name][partners[partners >= 0]]
            found[name] = np.moveaxis(rows, 0, axis)
    return found


def _groups(want: Outputs, have: Outputs, ranked: Set[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the axis of the rows, and the names of the outputs that have the same rows."""
    groups = defaultdict(list)
    for name in (name for name in want if name in ranked):
        pair = want[name], have[name]
        axis = int(all(array.ndim > 1 and len(array) == 1 for array in pair))
        shapes = [(*a.shape[:axis], *a.shape[axis + 1 :]) for a in pair if a.ndim]
        if len(set(shapes)) == 1:
            groups[(axis, *(array.shape[axis] for array in pair))].append(name)
    for (axis, *_), names in groups.items():
        # Skip an output with one number per row, such as a classifier's scores: its order is fixed.
        if len(names) > 1 or want[names[0]].ndim - axis > 1:
            yield axis, names


def _table(arrays: dict[str, Array], largest: dict[str, Array]) -> NDArray[np.float64]:
    """Return a table [rows, columns] of all arrays. Each array is divided by its largest value.

    `largest` contains the arrays that determine the largest values.
    """
    columns = []
    for name, array in arrays.items():
        finite = np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0)
        scale = np.nan_to_num(largest[name].astype(np.float64), posinf=0, neginf=0)
        width = int(np.prod(array.shape[1:]))
        columns.append(finite.reshape(len(array), width) / max(np.abs(scale).max(initial=0), 1e-6))
    return np.concatenate(columns, axis=1)


def _partners(want: NDArray[np.float64], have: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the index of the closest unused row for each row. If no row is left, it is -1."""
    partners = np.full(len(want), -1)
    free = np.ones(len(have), bool)
    both = min(len(want), len(have))
    in_place = np.flatnonzero(np.abs(want[:both] - have[:both]).max(axis=1, initial=0) <= _NEAR)
    partners[in_place] = in_place
    free[in_place] = False

    def distances(i: int) -> NDArray[np.float64]:
        off: NDArray[np.float64] = np.abs(have - want[i]).max(axis=1, initial=0)
        return np.where(free, off, np.inf)

    # The rows with the closest partners choose first. Otherwise a row that the engine does not have
    # could take the partner of another row.
    left = np.flatnonzero(partners < 0).tolist()
    for i in sorted(left, key=lambda i: distances(i).min(initial=np.inf)):
        if free.any():
            partners[i] = distances(i).argmin()
            free[partners[i]] = False
    return partners
