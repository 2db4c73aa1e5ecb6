"""Collects facts of a model's tensors and metadata that identify its head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fovea_engines.plural import counted
from fovea_engines.session import TensorSpec

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
"""The pyramids detectors are built on: P3 to P5, and with P6 or P2."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A family whose output layout fits a model.

    Attributes:
        num_classes: from the shape, or else from the class names; None where neither has it.
        why: the evidence, for people.
        sure: the number of boxes is that of the family's grid; False when it is unknown.
        twin: another kind of model with the same layout; None without one.
    """

    num_classes: int | None
    why: str
    sure: bool = True
    twin: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """Facts that distinguish families.

    Attributes:
        size: (height, width) of the input in pixels; None when dynamic and not in the metadata.
        output: the detection output, [batch, m, n].
        num_labels: number of class names in the metadata; None without names.
        end_to_end: the metadata says that suppression is part of the model; None if silent.
        exporter_metadata: the model has `names` or `stride`, as YOLOv5's and later do.
    """

    size: tuple[int, int] | None
    output: TensorSpec
    num_labels: int | None
    end_to_end: bool | None
    exporter_metadata: bool

    def fit_grid(self, boxes: int, columns: int, *, per_cell: int, others: int) -> Fit | str:
        """Return how well an output fits a grid of class scores, or the reason why it does not.

        A row has `columns` values, of which `others` are not classes; a dynamic length is -1.
        """
        if self.end_to_end:
            return "the metadata says end to end"
        if (grid := self._grid(boxes, per_cell)) is None:
            return f"{boxes} boxes are not {_anchors(per_cell)} a cell of the input"
        count = self._classes(columns, others)
        if isinstance(count, str):
            return count
        sure, why = grid
        return Fit(count, f"{why}; {counted(count, 'class')}", sure=sure)

    def _classes(self, columns: int, others: int) -> int | str:
        if columns == -1:
            return "the dimension that holds the classes is dynamic"
        count = columns - others
        if count < 1:
            return f"{columns} columns leave no class"
        if self.num_labels not in (None, count):
            return f"{counted(count, 'class')} by shape, but the metadata names {self.num_labels}"
        return count

    def _grid(self, boxes: int, per_cell: int) -> tuple[bool, str] | None:
        """Return True if the grid size is known, and the evidence; None if `boxes` fit no grid."""
        if boxes == -1:
            return False, "a dynamic number of boxes"
        for strides in STRIDES:
            levels = f"{_anchors(per_cell)} a cell at strides {', '.join(map(str, strides))}"
            if self.size is None:
                # Each level has (largest / stride)^2 cells per block of the largest stride.
                block = per_cell * sum((strides[-1] // stride) ** 2 for stride in strides)
                if boxes > 0 and boxes % block == 0:
                    return False, f"{boxes} boxes can be {levels} of a dynamic size"
            elif boxes == per_cell * cells(self.size, strides):
                return True, f"{boxes} boxes are {levels} of {self.size[0]}x{self.size[1]}"
        return None


def _anchors(per_cell: int) -> str:
    return "1 box" if per_cell == 1 else f"{per_cell} anchors"


def cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Return the number of grid cells of all levels for an input of (height, width) pixels."""
    height, width = size
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def image_layout(tensor: TensorSpec) -> Literal["NCHW", "NHWC"] | None:
    """Return the layout of a batch of colour images; None for any other tensor."""
    if len(tensor.shape) != 4 or 3 not in tensor.shape[1::2]:
        return None
    return "NCHW" if tensor.shape[1] == 3 else "NHWC"


def image_sides(tensor: TensorSpec) -> tuple[int, int]:
    """Return (height, width) of a batch of colour images, pixels; -1 where dynamic."""
    first = 2 if image_layout(tensor) == "NCHW" else 1
    return tensor.shape[first], tensor.shape[first + 1]


def describe(tensor: TensorSpec) -> str:
    """Format name and shape, with dynamic dimensions as "?": "output0 [?,84,8400]"."""
    return f"{tensor.name} [{','.join('?' if d == -1 else str(d) for d in tensor.shape)}]"
