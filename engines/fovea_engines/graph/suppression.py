"""Writes non-maximum suppression with plain operators of fixed shapes.

Cluster NMS (arXiv 2005.03572): all boxes start alive; in each round a box is alive unless a better
one that is alive overlaps it. A round settles at least one more box of each chain of overlapping
boxes, so as many rounds as the longest chain has links give the greedy answer.
"""

from __future__ import annotations

import numpy as np

from fovea_engines.graph.candidates import Candidates
from fovea_engines.graph.writer import Writer

ROUNDS = 8
"""Measured on 64 COCO images at an IoU of .7: boxes of .25 and more take 3 at most; the best
512 of any score take 6 of YOLOv8n and YOLOX-nano, and 10 of YOLOv5n (of 62 images 8). Where they
are too few, an even number leaves duplicates, and an odd one would lose boxes."""


def write_survivors(write: Writer, found: Candidates, iou: float) -> str:
    """Return the survivors: float32 [batch, 1, count], 1 or 0.

    Args:
        write: adds nodes to the graph.
        found: best first.
        iou: a box is dropped when it overlaps a surviving better one of its class by more.
    """
    over = _write_over(write, found, iou)
    alive = _write_none(write, over)
    for _ in range(ROUNDS - 1):
        # Mul and not MatMul, because TensorRT multiplies no float32 matrices on Turing (compute
        # capability 7.5).
        better = write("Mul", over, write("Transpose", alive, perm=[0, 2, 1]))
        alive = _write_none(write, better)
    return alive


def _write_none(write: Writer, over: str) -> str:
    """Mark boxes that nothing overlaps: [batch, 1, n] of [batch, n, n]."""
    any_over = write("ReduceMax", over, np.array([1]), keepdims=1)
    return write("Sub", np.array(1, np.float32), any_over)


def _write_over(write: Writer, found: Candidates, iou: float) -> str:
    """Mark pairs in which the box of the row is better than that of the column and overlaps it.

    The result is [batch, n, n], computed in float32 by the same steps as
    `fovea_engines.detect.nms`.
    """
    boxes, classes = (
        write("Transpose", tensor, perm=[0, 2, 1]) for tensor in (found.boxes, found.classes)
    )
    a, b = write.split(boxes, [1] * 4, 2), write.split(found.boxes, [1] * 4, 1)
    common = write("Mul", _write_shared(write, a, b, 0), _write_shared(write, a, b, 1))
    areas = write("Add", _write_area(write, a), _write_area(write, b))
    union = write("Max", write("Sub", areas, common), np.array(np.finfo(np.float32).tiny))
    over = write("Greater", write("Div", common, union), np.array(iou, np.float32))
    over = write("And", over, write("Equal", classes, found.classes))
    rank = np.arange(found.count, dtype=np.float32)
    over = write("And", over, write("Less", rank[:, None], rank))
    return write.cast(over, "float32")


def _write_shared(write: Writer, a: list[str], b: list[str], axis: int) -> str:
    """Return the length that boxes have in common."""
    last = write("Min", a[axis + 2], b[axis + 2])
    return write("Relu", write("Sub", last, write("Max", a[axis], b[axis])))


def _write_area(write: Writer, box: list[str]) -> str:
    return write("Mul", write("Sub", box[2], box[0]), write("Sub", box[3], box[1]))
