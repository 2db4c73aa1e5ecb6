"""Collects facts of a model's tensors and metadata that identify its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from fovea_engines.results.skeleton import Skeleton
from fovea_engines.session import TensorSpec
from fovea_preprocess.text import counted

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
"""Usual strides of detectors, pixels: P3 to P5, with P6, with P2, and without P3 (tiny models)."""

OTHERS = "its outputs have other names or shapes"
"""Reason for a family that does not fit at all. Only other reasons are shown to users."""


_NUMBERS = {1: "one", 2: "two", 3: "three"}


class Strength(IntEnum):
    """The strength of a fit. Only the strongest fits are considered."""

    ASKED = 0
    """Models of any kind have such outputs, so only `--head` chooses the family."""
    RARE = 1
    """The shapes are those of a more usual family, which the numbers must exclude first."""
    POSSIBLE = 2
    """The shapes are possible, e.g. because they are dynamic."""
    SHAPE = 3
    """The shapes are exactly those of the family's grid for this input size."""
    NAMES = 4
    """The outputs have the names that the family's exporter writes."""
    METADATA = 5
    """The exporter's metadata names the family."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A family whose output layout fits a model.

    Attributes:
        outputs: names of the outputs that the head reads, in the head's order.
        num_classes: number of classes by the shape, or else by the class names; None if unknown.
        why: the evidence, as text.
        strength: strength of the evidence.
        skeleton: names of the keypoints; None if there are none.
        unsure: another possible meaning of the outputs that numbers cannot exclude, so that only a
            user can choose the family; None if there is none.
        sure: True if there is more evidence than the shape, so that `Head.doubt` is not called.
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
    """Facts that distinguish families.

    Attributes:
        task: task in the metadata; None if there is none.
        size: (height, width) of the input in pixels; None if it is dynamic and not in the metadata.
        outputs: outputs of the model, in its order.
        metadata: metadata of the exporter.
        num_labels: number of class names in the metadata; None without names.
        beside: names of the inputs besides the image, which a build fills in.
        forced: True if the user insists on a family, so the number of boxes need not fit a grid.
    """

    task: str | None
    size: tuple[int, int] | None
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    num_labels: int | None
    beside: tuple[str, ...] = ()
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
        """Return the only output [batch, m, n] of a detector, or the reason why there is none.

        YOLOv5's raw levels, of five dimensions, are ignored.
        """
        boxes = [tensor for tensor in self.outputs if len(tensor.shape) == 3]
        if len(boxes) != 1:
            return OTHERS
        if any(len(tensor.shape) not in (3, 5) for tensor in self.outputs):
            return OTHERS
        if not boxes[0].dtype.startswith("float"):
            return f"{boxes[0].name} is of {boxes[0].dtype}, not float"
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
        """Return how well an output fits a grid, or the reason why it does not fit.

        Args:
            axis: dimension of the columns, 1 or 2; boxes are along the other dimension.
            per_cell: number of boxes of each cell.
            others: number of columns besides the classes.
            output: the output; None for the only one, see `single`.
        """
        if output is None:
            if isinstance(single := self.single(), str):
                return single
            output = single
        columns, boxes = output.shape[axis], output.shape[3 - axis]
        if self.end_to_end:
            return "the metadata says end2end, so duplicates are suppressed already"
        if isinstance(evidence := self.on_grid(boxes, per_cell), str):
            # A grid has more boxes than classes, so the transposed layout belongs to another
            # family.
            return OTHERS if -1 < boxes < columns else evidence
        if isinstance(count := self.count_classes(columns, others), str):
            return count
        strength, why = evidence
        return Fit((output.name,), count, f"{why}; {counted(count, 'class')}", strength)

    def count_classes(self, columns: int, others: int = 0) -> int | str:
        """Return the number of classes, or a reason if it is invalid or differs from the labels."""
        if columns == -1:
            return "the number of classes is dynamic"
        count = columns - others
        if count < 1:
            return f"{columns} columns per box leave no column for a class"
        if self.num_labels not in (None, count):
            names = f"the metadata or --labels name {self.num_labels}"
            cure = f"--labels FILE with a line for each of {count} says them"
            return f"{counted(count, 'class')} by the shape, but {names}: {cure}"
        return count

    def on_grid(self, boxes: int, per_cell: int = 1) -> tuple[Strength, str] | str:
        """Return strength and evidence that a number of boxes fits a usual grid, or a reason."""
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
        """Return strength and evidence that numbers of boxes fit the levels of a grid, or a reason.

        Args:
            boxes: number of boxes of each level, the finest first; or one number for all levels.
            strides: strides of the levels in pixels.
            per_cell: number of boxes of each cell.
        """
        levels = f"{_NUMBERS[per_cell]} for each cell at strides {', '.join(map(str, strides))}"
        total = sum(boxes)
        if -1 in boxes:
            return Strength.POSSIBLE, f"a dynamic number of boxes: {levels}"
        if self.size is None:
            # Each level has (largest / stride)^2 cells per block of the largest stride.
            block = per_cell * sum((strides[-1] // stride) ** 2 for stride in strides)
            if total > 0 and total % block == 0:
                return Strength.POSSIBLE, f"{total} boxes can be {levels} of an input of some size"
            return f"{total} boxes are not {levels}, whatever the size of the input"
        size = f"{self.size[0]}x{self.size[1]}"
        counts = [per_cell * cells(self.size, (stride,)) for stride in strides]
        if list(boxes) in (counts, [sum(counts)]):
            return Strength.SHAPE, f"{total} boxes are {levels} of {size}"
        other = f"{total} boxes, where {size} has {sum(counts)}: {levels}"
        return (Strength.POSSIBLE, other) if self.forced else other

    def at_stride(self, places: tuple[int, ...], stride: int) -> tuple[Strength, str] | str:
        """Return strength and evidence that (height, width) is a map at a stride, or a reason."""
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
    """Return the layout of a batch of colour images; None for any other tensor."""
    if len(tensor.shape) != 4 or 3 not in tensor.shape[1::2]:
        return None
    return "NCHW" if tensor.shape[1] == 3 else "NHWC"


def image_sides(tensor: TensorSpec) -> tuple[int, int]:
    """Return (height, width) of a batch of images, pixels; -1 for a dynamic side."""
    first = 2 if image_layout(tensor) == "NCHW" else 1
    return tensor.shape[first], tensor.shape[first + 1]


def describe(tensor: TensorSpec) -> str:
    """Format name and shape, with "?" for dynamic dimensions: "output0 [?,84,8400]"."""
    return f"{tensor.name} [{','.join('?' if d == -1 else str(d) for d in tensor.shape)}]"
