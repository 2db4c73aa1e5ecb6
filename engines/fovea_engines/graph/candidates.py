"""Writes nodes that select the best boxes of a detector's raw output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.yolov8 import YoloV8
from fovea_engines.detect.heads.yolox import YoloX
from fovea_engines.graph.writer import Writer
from fovea_engines.session import TensorSpec


@dataclass(frozen=True, slots=True)
class Candidates:
    """Names of float32 tensors, best box first.

    Attributes:
        count: number of boxes.
        boxes: [batch, 4, count], corners x1 y1 x2 y2 in pixels of the input.
        scores: [batch, 1, count].
        classes: [batch, 1, count], the best class of each.
    """

    count: int
    boxes: str
    scores: str
    classes: str


def write_candidates(
    write: Writer, head: Head, raw: str, spec: TensorSpec, most: int
) -> Candidates:
    """Write the decoding of a head, before suppression.

    Scores that are not finite count as 0. Boxes that are not finite overlap no other; readers of
    the result drop them.

    Args:
        write: adds nodes to the graph.
        head: of family yolov5, yolov8 or yolox.
        raw: name of the tensor that the head reads.
        spec: its type and shape.
        most: number of boxes to keep.
    """
    # Columns are centre, size, objectness if present, and classes.
    across, along = (1, 2) if isinstance(head, YoloV8) else (2, 1)
    columns, cells = spec.shape[across], spec.shape[along]
    widths = [2, 2, columns - 4] if isinstance(head, YoloV8) else [2, 2, 1, columns - 5]
    if spec.dtype != "float32":
        raw = write.cast(raw, "float32")

    _, _, *objectness, classes = write.split(raw, widths, across)
    best = write("ReduceMax", classes, np.array([across]), keepdims=1)
    for probability in objectness:
        best = write("Mul", probability, best)
    best = write("Reshape", best, np.array([0, 1, cells]))
    finite = write("Less", best, np.array(np.inf, np.float32))
    best = write("Where", finite, best, np.array(0, np.float32))
    count = min(most, cells)
    scores, places = write.top(best, count)

    few = write_gather(write, raw, places, columns, along)
    if along == 1:
        few = write("Transpose", few, perm=[0, 2, 1])
    centre, size, *_, classes = write.split(few, widths, 1)
    if isinstance(head, YoloX):
        centre, size = _write_decoded(write, head, centre, size, places, cells)
    half = write("Mul", size, np.array(0.5, np.float32))
    corners = write("Sub", centre, half), write("Add", centre, half)
    return Candidates(
        count,
        boxes=write("Concat", *corners, axis=1),
        scores=scores,
        classes=write.cast(write("ArgMax", classes, axis=1, keepdims=1), "float32"),
    )


def write_gather(write: Writer, table: str, places: str, columns: int, along: int) -> str:
    """Write a gather of the rows (along 1) or columns (along 2) of a table at [batch, 1, n].

    Args:
        write: adds nodes to the graph.
        table: [batch, rows, columns].
        places: integer indices.
        columns: length of the other dimension.
        along: the indexed dimension.
    """
    if along == 1:
        places = write("Reshape", places, np.array([0, -1, 1]))
    whole = np.array([1, 1, columns] if along == 1 else [1, columns, 1])
    return write("GatherElements", table, write("Expand", places, whole), axis=along)


def _write_decoded(
    write: Writer, head: YoloX, centre: str, size: str, places: str, cells: int
) -> tuple[str, str]:
    """Return centre and size in pixels; see `YoloX`."""
    origin, stride = head.grid(np.arange(cells), cells)
    x, y, scale = (write("Gather", column, places) for column in (*origin.T, *stride.T))
    centre = write("Add", write("Mul", centre, scale), write("Concat", x, y, axis=1))
    return centre, write("Mul", write("Exp", size), scale)
