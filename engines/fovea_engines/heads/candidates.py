"""Writes the decoding of a detector's boxes into its graph, before suppression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from fovea_engines.heads.dense import Dense
from fovea_engines.heads.scored_boxes import ScoredBoxes
from fovea_engines.heads.traced import Traced
from fovea_engines.onnx_graph.writer import Writer

Decoded = Dense | ScoredBoxes
"""Heads that are decoded in a graph."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Names of float32 tensors, best box first.

    Boxes are [batch, 4, count], corners x1 y1 x2 y2 in pixels of the input; scores and the best
    class of each are [batch, 1, count].
    """

    count: int
    boxes: str
    scores: str
    classes: str


@dataclass(frozen=True, slots=True)
class _All:
    """Candidates before the best are chosen.

    Boxes are [cells, 4], the best score of each is [cells], and classes, of which the largest is
    the best, lie along dimension 1 or 2 of [batch, ...].
    """

    boxes: Traced
    best: Traced
    classes: Traced
    along: Literal[1, 2]


def write_candidates(
    write: Writer, head: Decoded, outputs: Mapping[str, Traced], most: int
) -> Candidates:
    """Write the decoding of a head's outputs, and the choice of its best boxes, at `most` so many.

    Scores that are not finite count as 0. Boxes that are not finite stay so.
    """
    found = _dense(head, outputs) if isinstance(head, Dense) else _scored(head, outputs)
    best = found.best.reshape(1, -1).name
    finite = write("Less", best, np.array(np.inf, np.float32))
    best = write("Where", finite, best, np.array(0, np.float32))
    count = min(most, len(found.boxes))
    scores, places = write.top(best, count)
    classes = write_gather(write, found.classes, places, 3 - found.along)
    best_class = write("ArgMax", classes, axis=found.along, keepdims=1)
    boxes = write_gather(write, found.boxes, places, along=1)
    return Candidates(
        count,
        boxes=write("Transpose", boxes, perm=[0, 2, 1]),
        scores=scores,
        classes=write.cast(write("Reshape", best_class, np.array([0, 1, count])), "float32"),
    )


def _dense(head: Dense, outputs: Mapping[str, Traced]) -> _All:
    layout, table = head.layout, outputs[head.outputs[0]]

    def columns(first: int, end: int | None) -> Traced:
        part = slice(first, end)
        return table[part] if layout.axis == 1 else table[:, part]

    classes = columns(layout.classes, None)
    best = classes.max(axis=layout.axis - 1)
    if layout.objectness:
        best = columns(4, 5).reshape(-1) * best
    values: Any = columns(0, 4)
    cells = len(best)
    if layout.axis == 1:
        values = values.T
    boxes: Any = head.boxes(values, np.arange(cells), cells)
    return _All(boxes, best, classes, layout.axis)


def _scored(head: ScoredBoxes, outputs: Mapping[str, Traced]) -> _All:
    batches: Any = {name: _Batch(tensor) for name, tensor in outputs.items()}
    # Landmarks, which some levels have too, are left out.
    columns: Any = zip(*(level[:2] for level in head.levels(batches, 0)), strict=True)
    scores, values = (cast(Any, np.concatenate(parts)) for parts in columns)
    boxes: Any = head.boxes(values, np.arange(len(values)))
    return _All(boxes, scores.max(axis=1), scores, 2)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch of which any row is that of all images."""

    rows: Traced

    @property
    def ndim(self) -> int:
        """Return the number of dimensions, with that of the batch."""
        return len(self.rows.shape) + 1

    def __getitem__(self, row: int) -> Traced:
        return self.rows


def write_gather(write: Writer, table: Traced, places: str, along: int) -> str:
    """Gather rows (along 1) or columns (along 2) of a table [batch, rows, columns].

    The places are integers, [batch, 1, n].
    """
    if along == 1:
        places = write("Reshape", places, np.array([0, -1, 1]))
    columns = table.shape[2 - along]
    whole = np.array([1, 1, columns] if along == 1 else [1, columns, 1])
    return write("GatherElements", table.name, write("Expand", places, whole), axis=along)
