"""Defines the interface of a head."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.signature import Fit, Signature
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import FARTHEST
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel

IMAGENET: Mapping[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""Fields of `PreprocessSpec` for networks trained on 0 to 1 less ImageNet's mean, over its std."""

MMDETECTION: Mapping[str, Any] = {
    "channels": "BGR",
    "scale": 1.0,
    "mean": (103.53, 116.28, 123.675),
    "std": (57.375, 57.12, 58.395),
}
"""Mean and std of MMDetection's configurations in BGR, which NanoDet shares."""

CROPPED: Mapping[str, Any] = {"fit": "center-crop", "crop_ratio": 256 / 224, **IMAGENET}
"""The preprocessing of torchvision's and timm's classifiers."""

YOLOX: Mapping[str, Any] = {
    "channels": "BGR",
    "scale": 1.0,
    "anchor": "top-left",
    "unscale": "ratio",
}
"""The preprocessing of YOLOX's own exporter, and of exporters that follow it."""

STRETCHED: Mapping[str, Any] = {"fit": "stretch", **IMAGENET}
STRETCHED_MOSTLY = (
    "most such networks stretch the image, and take mean and std of ImageNet; others differ"
)
"""The preprocessing of networks that look at a whole image or crop, and where exporters differ."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a raw output: a box, objectness if it has it, and the classes.

    Attributes:
        axis: dimension along which they lie, 1 or 2; the boxes lie along the other.
        objectness: without it, a class's probability is the score.
        corners: boxes are x1 y1 x2 y2, and not centre and size.
    """

    axis: Literal[1, 2]
    objectness: bool = False
    corners: bool = False

    @property
    def classes(self) -> int:
        """Number of the first column of a class."""
        return 5 if self.objectness else 4


@dataclass(frozen=True)
class Head(ABC):
    """Decodes one family's outputs. Immutable, so threads share it.

    A family is a class whose class variables describe it; a subclass needs no `dataclass` of its
    own. Where families differ in these variables alone, one class makes all, by `as_family`.

    Attributes:
        family: name in `FAMILIES`.
        task: the decoded task, e.g. "detect" or "segment".
        labels: names of the classes, where all models of the family have the same.
        preprocess: fields of `PreprocessSpec` in which its training differs from the defaults.
        guessed: in what exporters of the family differ in preprocessing; "" if in nothing.
        variants: names, in `VARIANTS`, of what these do otherwise.
        nameless: its task knows no classes, and so no names of them.
        sized: it needs the size of the input to decode.
        resizes: its graphs resize images themselves, and take any size.
        outputs: names of the outputs that are decoded, in the order of `Fit.outputs`.
        size: (height, width) of the input, pixels; None if dynamic, which `sized` heads exclude.
        num_classes: None where unknown.
        skeleton: of the keypoints; None without them.
    """

    family: ClassVar[str]
    task: ClassVar[str] = "detect"
    labels: ClassVar[tuple[str, ...]] = ()
    preprocess: ClassVar[Mapping[str, Any]] = {}
    guessed: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ()
    nameless: ClassVar[bool] = False
    sized: ClassVar[bool] = False
    resizes: ClassVar[bool] = False

    outputs: tuple[str, ...]
    size: tuple[int, int] | None = None
    num_classes: int | None = None
    skeleton: Skeleton | None = None

    @classmethod
    def as_family(cls, family: str, **values: Any) -> type[Self]:
        """Return a class of this name that has these values of class variables.

        TypeError for a variable that the class has not.
        """
        known = {name for one in cls.__mro__ for name in get_annotations(one)}
        if unknown := sorted(values.keys() - known):
            raise TypeError(f"{cls.__name__} has no class variable {', '.join(unknown)}")
        own = {"family": family, "__module__": cls.__module__, "__doc__": cls.__doc__}
        make: Any = type(cls)
        kind: type[Self] = make(f"{cls.__name__}[{family}]", (cls,), own | values)
        return kind

    @classmethod
    @abstractmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Return how well a model's signature fits this family, or the reason why it does not."""

    @classmethod
    def open(
        cls,
        outputs: tuple[str, ...],
        size: tuple[int, int] | None,
        num_classes: int | None = None,
        skeleton: Skeleton | None = None,
    ) -> Self:
        """Return a head for the named outputs and an input of (height, width) pixels."""
        if cls.sized and size is None:
            raise UnsupportedModel(
                f"a head of family {cls.family} is decoded with the input's size, which is "
                "dynamic: build with --size HEIGHTxWIDTH"
            )
        return cls(outputs, size, num_classes, skeleton)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return what in the numbers for one image, [1, ...] each, excludes this family."""
        return None

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Return what speaks against this family only if the image shows what the model finds.

        It excludes a family that is guessed. A family that the user names it does not, as a model
        for something else than is on the image says the same.
        """
        return None

    def tells(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether numbers for one image could speak against this family: zeros cannot."""
        return any(np.any(outputs[name]) for name in self.outputs)

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the first of `numbers` that has NaN or infinity; None if `decode` can read all."""
        return next((n for n, values in self.numbers(outputs, row) if not is_sound(values)), None)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield what `decode` reads of one image, without padding, each with a name for people."""
        for name in self.outputs:
            yield f"output {name}", outputs[name][row : row + 1]

    @abstractmethod
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> TaskResult:
        """Return what the model found in one image; objects are suppressed, and best first.

        Args:
            outputs: the session's answer, float16, float32 or float64; not changed, and not
                referenced by the result. Values that are not finite are dropped.
            row: index of the image in the batch.
            options: of the request. A box has only its best class, and is dropped when
                `options.classes` lacks that class; a query with a sigmoid for each class may be
                several boxes.

        Returns:
            In pixels of the model's input; boxes are not clipped to it.
        """


class Detector(Head):
    """Decodes objects with boxes.

    Attributes:
        duplicates: several boxes may be of one object, so they need suppression.
        layout: of the output, where it is one whose columns are boxes and classes.
    """

    duplicates: ClassVar[bool] = False
    layout: ClassVar[Layout | None] = None

    @abstractmethod
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's objects, suppressed, best first."""

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the first image's numbers, [columns, boxes]; None where the rows are ranked.

        Two ranked rows of equal score may change places, so that their numbers cannot be compared.
        """
        if self.layout is None:
            return None
        first: Array = outputs[self.outputs[0]][0]
        return first if self.layout.axis == 1 else first.T

    def tables(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the first image's numbers whose places are fixed, [columns, places], by name."""
        columns = self.columns(outputs)
        return {} if columns is None else {"raw output": columns}


# Bits of a half: all but the sign, and the exponent of NaN and infinity.
_NO_SIGN, _NOT_FINITE = 0x7FFF, 0x7C00


def is_sound(numbers: Array) -> bool:
    """Return whether no number is NaN or infinite, and not all are minus infinity.

    That is whether the largest is finite, which is one quick pass. Minus infinity beside others is
    how networks write that a class or a query is out of the question.
    """
    if numbers.dtype.kind != "f" or not numbers.size:
        return True
    # Its bits are compared a hundred times as fast as halves are.
    half = numbers.dtype == np.float16
    if half and (numbers.view(np.uint16) & _NO_SIGN).max() < _NOT_FINITE:
        return True
    return math.isfinite(np.maximum.reduce(numbers, axis=None))


def corners(centred: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert boxes [n, 4] from cx cy w h to x1 y1 x2 y2."""
    centre, half = centred[:, :2], centred[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the probabilities of logits, float32 [..., classes], along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float32] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def keypoints(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return keypoints [n, k, 3], x y and a score, as `Detections` has them.

    Args:
        points: float32 [n, k, 2 or 3]. Those that a model does not score have a score of 1. Where
            one is broken, or farther out than `FARTHEST`, all three numbers are 0.
    """
    if points.shape[2] == 2:
        points = np.concatenate([points, np.ones_like(points[..., :1])], axis=2)
    # Each comparison is False for NaN.
    sound = (np.abs(points[..., :2]) < FARTHEST).all(axis=2) & (points[..., 2] < np.inf)
    return np.where(sound[..., None], points, 0).clip(max=[np.inf, np.inf, 1]).astype(np.float32)
