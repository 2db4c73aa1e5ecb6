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
"""The pyramids detectors are built on: P3 to P5, with P6 or P2, and without P3, as tiny ones."""

OTHERS = "its outputs have other names or shapes"
"""The reason why a family does not fit at all; any other reason is worth telling."""


_NUMBERS = {1: "one", 2: "two", 3: "three"}


class Strength(IntEnum):
    """The weight of a fit: the strongest fits are considered alone."""

    ASKED = 0
    """Models of any kind have such outputs: only `--head` chooses it."""
    RARE = 1
    """It has the shapes of a more usual family, which the numbers must exclude."""
    POSSIBLE = 2
    """The shapes allow it, as dynamic ones do."""
    SHAPE = 3
    """The shapes are those of the family's grid for this size of the input."""
    NAMES = 4
    """The outputs have the names that the family's exporter writes."""
    METADATA = 5
    """The exporter's metadata names the family."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A family whose output layout fits a model.

    Attributes:
        outputs: names of the outputs that the head reads, in the head's order.
        num_classes: from the shape, or else from the class names; None where neither has it.
        why: the evidence, for people.
        skeleton: of the keypoints; None without them.
        unsure: what else the outputs may be, which numbers do not tell, so that only a user can
            choose the family; None where they can be nothing else.
        sure: more than the shape shows the family, so that `Head.doubt` is not called.
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
        task: that the metadata names; None where it names none.
        size: (height, width) of the input in pixels; None when dynamic and not in the metadata.
        outputs: of the model, in its order.
        metadata: the exporter's own.
        num_labels: number of class names in the metadata; None without names.
        beside: names of inputs that a build fills in, which stand beside the image.
        forced: the user insists on a family, so boxes need not be as many as a grid has.
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
        """True if the metadata says that suppression is part of the model; None if silent."""
        declared = self.metadata.get("end2end")
        return None if declared is None else declared.lower() == "true"

    @property
    def family(self) -> str:
        """Name of the family as the metadata has it: LibreYOLO's, or Ultralytics' class of head."""
        return self.metadata.get("model_family") or self.metadata.get("head", "")

    def named(self, *names: str) -> tuple[TensorSpec, ...] | str:
        """Return the outputs of these names, or `OTHERS` if the model has not just these."""
        by_name = {tensor.name: tensor for tensor in self.outputs}
        if by_name.keys() != set(names):
            return OTHERS
        return tuple(by_name[name] for name in names)

    def single(self) -> TensorSpec | str:
        """Return the one output [batch, m, n] of a detector, or the reason why there is none.

        YOLOv5's raw levels, of five dimensions, may stand beside it.
        """
        boxes = [tensor for tensor in self.outputs if len(tensor.shape) == 3]
        if len(boxes) != 1:
            return OTHERS
        if any(len(tensor.shape) not in (3, 5) for tensor in self.outputs):
            return OTHERS
        if not boxes[0].dtype.startswith("float"):
            return f"{boxes[0].name} is of {boxes[0].dtype}, not float"
        if boxes[0].shape[1:] == self.size:
            return f"{boxes[0].name} is as large as the input, as maps are"
        return boxes[0]

    def fit_grid(
        self,
        *,
        axis: Literal[1, 2],
        per_cell: int,
        others: int,
        output: TensorSpec | None = None,
    ) -> Fit | str:
        """Return how well an output fits a grid, or the reason why it does not.

        Its columns, `others` and one for each class, lie along dimension `axis`, and boxes along
        the other; a dynamic length is -1. Without `output`, it is the single one.
        """
        if output is None:
            if isinstance(single := self.single(), str):
                return single
            output = single
        columns, boxes = output.shape[axis], output.shape[3 - axis]
        if self.end_to_end:
            return "the metadata says end2end, so duplicates are suppressed already"
        if isinstance(evidence := self.on_grid(boxes, per_cell), str):
            # A grid has more boxes than classes: seen from the side, it is that of other families.
            return OTHERS if -1 < boxes < columns else evidence
        if isinstance(count := self.count_classes(columns, others), str):
            return count
        strength, why = evidence
        return Fit((output.name,), count, f"{why}; {counted(count, 'class')}", strength)

    def count_classes(self, columns: int, others: int = 0) -> int | str:
        """Return the number of classes, or the reason why there is none or another by name."""
        if columns == -1:
            return "the number of classes is dynamic"
        count = columns - others
        if count < 1:
            return f"{columns} numbers a box have room for no class"
        if self.num_labels not in (None, count):
            names = f"the metadata or --labels name {self.num_labels}"
            cure = f"--labels FILE with a line for each of {count} says them"
            return f"{counted(count, 'class')} by the shape, but {names}: {cure}"
        return count

    def on_grid(self, boxes: int, per_cell: int = 1) -> tuple[Strength, str] | str:
        """Return how surely a number of boxes is that of the grid, and the evidence for it.

        If they fit no grid, it is the reason.
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
        """Return how surely numbers of boxes are those of a grid's levels, and the evidence.

        If they are not, it is the reason. The numbers are of the levels, the finest first, or one
        number is that of all.
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
        """Return how surely (height, width) is that of a map at a stride, or why it is not."""
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
    """Return (height, width) of a batch of colour images, pixels; -1 where dynamic."""
    first = 2 if image_layout(tensor) == "NCHW" else 1
    return tensor.shape[first], tensor.shape[first + 1]


def describe(tensor: TensorSpec) -> str:
    """Format name and shape, with dynamic dimensions as "?": "output0 [?,84,8400]"."""
    return f"{tensor.name} [{','.join('?' if d == -1 else str(d) for d in tensor.shape)}]"
