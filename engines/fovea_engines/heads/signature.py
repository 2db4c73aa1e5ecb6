"""Collects facts about a model's tensors and metadata that identify its head family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from fovea_engines.results.skeleton import Skeleton
from fovea_engines.session import TensorSpec
from fovea_preprocess.text import counted

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
"""Usual strides of detectors in pixels: P3 to P5, P3 to P6, P2 to P5, and P4 to P5."""

OTHERS = "its outputs have other names or shapes"
"""Reason for a family that does not fit at all. Messages to users leave this reason out."""


_NUMBERS = {1: "one", 2: "two", 3: "three"}


class Strength(IntEnum):
    """The strength of the evidence for a family. The strongest fit is chosen."""

    ON_REQUEST = 0
    """Strength of a fit that any model could have: only `--head` can choose the family."""
    RARE = 1
    """Strength if a more usual family has the same shapes.

    The model's output values must first exclude the more usual family.
    """
    POSSIBLE = 2
    """Strength if the shapes may fit, for example because they are dynamic."""
    SHAPE = 3
    """Strength if the shapes fit the family's grid exactly at this input size."""
    NAMES = 4
    """Strength if the outputs have the names that the family's exporter gives them."""
    METADATA = 5
    """Strength if the exporter's metadata contains the name of the family. This is the highest."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A family whose output layout fits a model.

    Attributes:
        outputs: names of the outputs that the head reads, in the head's order.
        num_classes: number of classes, from the shape or from the class names; None if unknown.
        why: text that describes the evidence for the family.
        strength: strength of the evidence.
        skeleton: names of the keypoints; None if there are none.
        unsure: text about another possible meaning of the outputs that output values cannot
            exclude. Then only a user can choose the family. None if there is no other meaning.
        sure: True if the shape is not the only evidence. Then `Head.doubt` is not called.
    """

    outputs: tuple[str, ...]
    num_classes: int | None
    why: str
    strength: Strength = Strength.SHAPE
    skeleton: Skeleton | None = None
    unsure: str | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Facts about a model that distinguish head families.

    Attributes:
        task: task in the metadata; None if there is none.
        size: (height, width) of the input in pixels; None if it is dynamic and not in the metadata.
        outputs: outputs of the model, in its order.
        metadata: metadata of the exporter.
        num_labels: number of class names in the metadata; None without names.
        other_inputs: names of the inputs other than the image. A build fills them in.
        forced: True if the user forces a family with --force-head. Then the number of boxes need
            not fit a grid.
    """

    task: str | None
    size: tuple[int, int] | None
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    num_labels: int | None
    other_inputs: tuple[str, ...] = ()
    forced: bool = False

    @property
    def end_to_end(self) -> bool | None:
        """True if the metadata states that the model suppresses duplicates; None if unknown."""
        declared = self.metadata.get("end2end")
        return None if declared is None else declared.lower() == "true"

    @property
    def family(self) -> str:
        """Name of the family in the metadata: LibreYOLO's name, or Ultralytics' head class."""
        return self.metadata.get("model_family") or self.metadata.get("head", "")

    def named(self, *names: str) -> tuple[TensorSpec, ...] | str:
        """Return the outputs with these names, or `OTHERS` if the model has other outputs."""
        by_name = {tensor.name: tensor for tensor in self.outputs}
        if by_name.keys() != set(names):
            return OTHERS
        return tuple(by_name[name] for name in names)

    def single(self) -> TensorSpec | str:
        """Return the only output [batch, m, n] of a detector.

        If there is no such output, or several, return the reason. Outputs with five dimensions are
        ignored, because exports of YOLOv5 may have such raw outputs in addition.
        """
        boxes = [tensor for tensor in self.outputs if len(tensor.shape) == 3]
        if len(boxes) != 1:
            return OTHERS
        if any(len(tensor.shape) not in (3, 5) for tensor in self.outputs):
            return OTHERS
        if not boxes[0].dtype.startswith("float"):
            return f"{boxes[0].name} has the type {boxes[0].dtype}, not float"
        if boxes[0].shape[1:] == self.size:
            return f"{boxes[0].name} has the size of the input, like a map"
        return boxes[0]

    def fit_grid(
        self,
        *,
        axis: Literal[1, 2],
        per_cell: int,
        others: int,
        output: TensorSpec | None = None,
    ) -> Fit | str:
        """Return the fit if an output has a row of columns for each box of a grid.

        If the output does not fit, return the reason.

        Args:
            axis: index of the dimension of the columns, 1 or 2. The boxes are along the other
                dimension.
            per_cell: number of boxes per cell of the grid.
            others: number of columns that are not classes.
            output: output to check. None means the result of `single`.
        """
        if output is None:
            if isinstance(single := self.single(), str):
                return single
            output = single
        columns, boxes = output.shape[axis], output.shape[3 - axis]
        if self.end_to_end:
            return "the metadata has end2end, so the model already suppresses duplicates"
        if isinstance(evidence := self.on_grid(boxes, per_cell), str):
            # A grid has more boxes than columns. If it is the other way round, the output is
            # transposed and belongs to another family.
            return OTHERS if -1 < boxes < columns else evidence
        if isinstance(count := self.count_classes(columns, others), str):
            return count
        strength, why = evidence
        return Fit((output.name,), count, f"{why}; {counted(count, 'class')}", strength)

    def count_classes(self, columns: int, others: int = 0) -> int | str:
        """Return the number of classes of an output with `columns` columns.

        If the number is invalid, or differs from the number of class names, return the reason.
        """
        if columns == -1:
            return "the number of classes is dynamic"
        count = columns - others
        if count < 1:
            return f"{columns} columns per box leave no column for a class"
        if self.num_labels not in (None, count):
            names = f"the metadata or --labels name {self.num_labels}"
            cure = f"give --labels FILE with {count} lines"
            return f"the shape gives {counted(count, 'class')}, but {names}: {cure}"
        return count

    def on_grid(self, boxes: int, per_cell: int = 1) -> tuple[Strength, str] | str:
        """Check whether a number of boxes fits one of the usual grids.

        Returns:
            The strength of the fit and a text about the evidence; or the reason why the number does
                not fit.
        """
        if boxes == -1:
            return Strength.POSSIBLE, "a dynamic number of boxes"
        found = [self.on_levels([boxes], strides, per_cell) for strides in STRIDES]
        return next((one for one in found if not isinstance(one, str)), found[0])

    def by_columns(self, columns: int) -> tuple[TensorSpec, ...]:
        """Return the outputs whose last dimension has this length, in the model's order."""
        return tuple(tensor for tensor in self.outputs if tensor.shape[-1:] == (columns,))

    def on_levels(
        self, boxes: Sequence[int], strides: tuple[int, ...], per_cell: int = 1
    ) -> tuple[Strength, str] | str:
        """Check whether numbers of boxes fit the levels of a grid.

        Args:
            boxes: number of boxes of each level, the finest level first; or one number for all
                levels together.
            strides: strides of the levels in pixels.
            per_cell: number of boxes per cell.

        Returns:
            The strength of the fit and a text about the evidence; or the reason why the numbers do
                not fit.
        """
        levels = f"{_NUMBERS[per_cell]} for each cell at strides {', '.join(map(str, strides))}"
        total = sum(boxes)
        if -1 in boxes:
            return Strength.POSSIBLE, f"a dynamic number of boxes: {levels}"
        if self.size is None:
            # A block is a square whose side is the largest stride. Each level has
            # (largest / stride)^2 cells per block.
            block = per_cell * sum((strides[-1] // stride) ** 2 for stride in strides)
            if total > 0 and total % block == 0:
                return Strength.POSSIBLE, f"{total} boxes fit {levels} at some input size"
            return f"{total} boxes do not fit {levels} at any input size"
        size = f"{self.size[0]}x{self.size[1]}"
        counts = [per_cell * cells(self.size, (stride,)) for stride in strides]
        if list(boxes) in (counts, [sum(counts)]):
            return Strength.SHAPE, f"{total} boxes are {levels} of {size}"
        other = f"the model has {total} boxes, but an input of {size} has {sum(counts)}: {levels}"
        return (Strength.POSSIBLE, other) if self.forced else other

    def at_stride(self, places: tuple[int, ...], stride: int) -> tuple[Strength, str] | str:
        """Check whether (height, width) is the size of a map at a stride.

        Returns:
            The strength of the fit and a text about the evidence; or the reason why the size does
                not fit.
        """
        if self.size is None or -1 in places:
            return Strength.POSSIBLE, f"a dynamic map can be at stride {stride}"
        height, width = self.size
        shown = f"a map of {places[0]}x{places[1]}"
        if places == (-(-height // stride), -(-width // stride)):
            return Strength.SHAPE, f"{shown} is at stride {stride} of {height}x{width}"
        return f"{shown} is not at stride {stride} of {height}x{width}"


def cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Return the number of grid cells of all levels for an input of (height, width) pixels."""
    height, width = size
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def image_layout(tensor: TensorSpec) -> Literal["NCHW", "NHWC"] | None:
    """Return the layout of a batch of colour images. For any other tensor, return None."""
    if len(tensor.shape) != 4 or 3 not in tensor.shape[1::2]:
        return None
    return "NCHW" if tensor.shape[1] == 3 else "NHWC"


def image_sides(tensor: TensorSpec) -> tuple[int, int]:
    """Return the (height, width) in pixels of a batch of images. A dynamic side is -1."""
    first = 2 if image_layout(tensor) == "NCHW" else 1
    return tensor.shape[first], tensor.shape[first + 1]


def describe(tensor: TensorSpec) -> str:
    """Format the name and shape of a tensor, e.g. "output0 [?,84,8400]". "?" is dynamic."""
    return f"{tensor.name} [{','.join('?' if d == -1 else str(d) for d in tensor.shape)}]"
