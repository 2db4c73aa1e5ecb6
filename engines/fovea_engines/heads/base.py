"""Defines the interface of a head, which decodes the outputs of a family of models."""

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
"""Mean and std of ImageNet, as fields of `PreprocessSpec`, for inputs scaled to 0 to 1."""

MMDETECTION: Mapping[str, Any] = {
    "channels": "BGR",
    "scale": 1.0,
    "mean": (103.53, 116.28, 123.675),
    "std": (57.375, 57.12, 58.395),
}
"""Channels, scale, mean and std of MMDetection's configurations and of NanoDet."""

CROPPED: Mapping[str, Any] = {"fit": "center-crop", "crop_ratio": 256 / 224, **IMAGENET}
"""The preprocessing of classifiers of torchvision and timm."""

YOLOX: Mapping[str, Any] = {
    "channels": "BGR",
    "scale": 1.0,
    "anchor": "top-left",
    "unscale": "ratio",
}
"""The preprocessing of models from YOLOX's own exporter, and from exporters that copy it."""

STRETCHED: Mapping[str, Any] = {"fit": "stretch", **IMAGENET}
STRETCHED_MOSTLY = (
    "most such models stretch the image and use ImageNet's mean and std, but some do not"
)
"""Usual preprocessing of models for whole images or crops, as a text, with its usual variants."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a raw output. Its columns are a box, perhaps an objectness, and the classes.

    Attributes:
        axis: index of the dimension of the columns, 1 or 2. The boxes are along the other
            dimension.
        objectness: True if there is a column for the objectness: the probability that the box
            contains an object. Without it, the class probability is the score.
        corners: True if boxes are x1 y1 x2 y2; False if they are cx cy w h.
    """

    axis: Literal[1, 2]
    objectness: bool = False
    corners: bool = False

    @property
    def classes(self) -> int:
        """Return the index of the first class column."""
        return 5 if self.objectness else 4


@dataclass(frozen=True)
class Head(ABC):
    """Decodes the outputs of one family of models. Heads are immutable, so threads can share them.

    Each family is a subclass, and its class variables describe the family. A subclass does not need
    the decorator `dataclass`. If families differ only in class variables, `as_family` creates them
    from one class.

    Attributes:
        family: name of the family in `FAMILIES`.
        task: the decoded task, e.g. "detect" or "segment".
        labels: class names, if all models of the family have the same classes.
        preprocess: fields of `PreprocessSpec` that differ from the defaults.
        guessed: text that describes how exporters of the family differ in preprocessing. Then
            `preprocess` is a guess. "" if the exporters do not differ.
        variants: names in `VARIANTS` of other preprocessing that some exporters of the family use.
        nameless: True if the task has no classes and therefore no class names.
        sized: True if decoding needs the size of the input.
        resizes: True if the family's graphs resize images themselves and accept any size.
        outputs: names of the decoded outputs, in the order of `Fit.outputs`.
        size: (height, width) of the input in pixels; None if dynamic, which `sized` heads reject.
        num_classes: number of classes; None if unknown.
        skeleton: names of the keypoints; None if there are none.
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
        """Return a subclass for a family, with these values of class variables.

        Args:
            family: name of the family.
            values: class variables by name.

        Raises:
            TypeError: the class has no such variable.
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
        """Return the fit if the model's outputs suit this family. Otherwise return the reason."""

    @classmethod
    def open(
        cls,
        outputs: tuple[str, ...],
        size: tuple[int, int] | None,
        num_classes: int | None = None,
        skeleton: Skeleton | None = None,
    ) -> Self:
        """Create a head.

        Args:
            outputs: names of the outputs to decode.
            size: (height, width) of the input in pixels; None if dynamic.
            num_classes: number of classes; None if unknown.
            skeleton: names of the keypoints; None if there are none.

        Raises:
            UnsupportedModel: the size is dynamic, and the family needs it to decode.
        """
        if cls.sized and size is None:
            raise UnsupportedModel(
                f"family {cls.family} needs a fixed input size, but the model's is dynamic: build "
                "with --size HEIGHTxWIDTH"
            )
        return cls(outputs, size, num_classes, skeleton)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return the reason why the outputs for one image cannot belong to this family.

        If there is no such reason, return None.

        Args:
            outputs: arrays [1, ...] by name.
        """
        return None

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Return a reason against this family that is valid only if the image shows known objects.

        If the image shows no object that the model knows, a model of this family can produce the
        same outputs. Therefore the reason excludes a family only if the user did not name it.

        Args:
            outputs: arrays [1, ...] by name, for one image.
        """
        return None

    def has_evidence(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether the outputs for one image could contradict this family.

        Outputs that are all zeros, for example, fit every family.
        """
        return any(np.any(outputs[name]) for name in self.outputs)

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the name of the first array of `numbers` that `is_sound` rejects.

        If `is_sound` accepts all arrays, return None.
        """
        return next((n for n, values in self.numbers(outputs, row) if not is_sound(values)), None)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield (name, array) for each array that `decode` reads. The arrays contain no padding."""
        for name in self.outputs:
            yield f"output {name}", outputs[name][row : row + 1]

    @abstractmethod
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> TaskResult:
        """Decode the result for one image. Objects are suppressed and sorted, best first.

        Args:
            outputs: outputs of the session by name, float16, float32 or float64. The method does
                not change them, and the result does not refer to them. Objects with values that
                are not finite are dropped.
            row: index of the image in the batch.
            options: options of the request. A box has only its best class, and is dropped if
                `options.classes` does not contain this class. Queries (as in DETR) with a sigmoid
                for each class are an exception: one query may yield several boxes.

        Returns:
            The result in pixels of the model's input. Boxes are not clipped to the input.
        """


class Detector(Head):
    """Decodes objects with boxes.

    Attributes:
        duplicates: True if several boxes may belong to one object, so that suppression is needed.
        layout: columns of the output, if they are boxes and classes; otherwise None.
    """

    duplicates: ClassVar[bool] = False
    layout: ClassVar[Layout | None] = None

    @abstractmethod
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the objects of one image, suppress duplicates, and sort the rest, best first."""

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the output for the first image, [columns, boxes].

        The array is used to compare two engines box by box. If the rows are sorted by score,
        return None: boxes with nearly equal scores may be sorted differently, so the rows of two
        engines may belong to different boxes.
        """
        if self.layout is None:
            return None
        first: Array = outputs[self.outputs[0]][0]
        return first if self.layout.axis == 1 else first.T

    def tables(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the first image's arrays [columns, boxes] with a fixed order of boxes, by name."""
        columns = self.columns(outputs)
        return {} if columns is None else {"raw output": columns}


# Bit masks of float16: all bits except the sign, and the exponent bits of NaN and infinity.
_NO_SIGN, _NOT_FINITE = 0x7FFF, 0x7C00


def is_sound(numbers: Array) -> bool:
    """Return whether the largest number is finite.

    If the largest number is finite, the array contains no NaN and no positive infinity. Negative
    infinity is allowed, because models use it for impossible classes or queries. Return True for
    arrays that are empty or do not contain floats.
    """
    if numbers.dtype.kind != "f" or not numbers.size:
        return True
    # Compare float16 numbers as integers, because NumPy does this a hundred times faster.
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
    """Return keypoints [n, k, 3], x y and a score, in the form that `Detections` needs.

    Args:
        points: float32 [n, k, 2 or 3]. Without scores, each keypoint gets the score 1. A keypoint
            that is not finite or lies beyond `FARTHEST` becomes three zeros.
    """
    if points.shape[2] == 2:
        points = np.concatenate([points, np.ones_like(points[..., :1])], axis=2)
    # These comparisons exclude NaN, because every comparison with NaN is False.
    sound = (np.abs(points[..., :2]) < FARTHEST).all(axis=2) & (points[..., 2] < np.inf)
    return np.where(sound[..., None], points, 0).clip(max=[np.inf, np.inf, 1]).astype(np.float32)
