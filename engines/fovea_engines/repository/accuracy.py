"""Defines the accuracy on labelled images that an engine's card stores, for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

from fovea_engines.repository.figures import NO_FIGURE, Overlap, Precision

_COMPARED: Mapping[Overlap, str] = {
    "IoU": "boxes",
    "mask IoU": "masks",
    "OKS": "keypoints",
    "rotated IoU": "rotated boxes",
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of a detector as average precision, 0 to 1.

    Attributes:
        images: number of images.
        map50_95: mean average precision over all classes and over the overlap thresholds 0.50, 0.55
            ... 0.95.
        map50: mean average precision over all classes at the overlap threshold 0.50.
        per_class: name or number of each class in the labels -> its `map50_95`.
        by_size: "small", "medium" or "large" -> `map50_95` of the objects of this size. The value
            is None if there are no such objects. Small objects have an area below 32² pixels, and
            large objects have an area above 96² pixels.
        overlap: kind of overlap between a detection and a label, e.g. "mask IoU".
        box_map50_95: `map50_95` of the boxes if `overlap` compares masks or keypoints; otherwise
            None.
        box_map50: `map50` of the boxes if `overlap` compares masks or keypoints; otherwise None.
    """

    images: int
    map50_95: float
    map50: float
    per_class: dict[str, float]
    by_size: dict[str, float | None]
    overlap: Overlap = "IoU"
    box_map50_95: float | None = None
    box_map50: float | None = None

    @property
    def metric(self) -> str:
        """Return the name of `figure`, e.g. "mAP50-95"."""
        return {"mask IoU": "mask mAP50-95", "OKS": "OKS mAP50-95"}.get(self.overlap, "mAP50-95")

    @property
    def compared(self) -> str:
        """Return a text about the compared shapes, e.g. "masks"."""
        return _COMPARED[self.overlap]

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.map50_95

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value over all classes."""
        found = {self.metric: self.map50_95, self.metric.removesuffix("-95"): self.map50}
        boxes = {"box mAP50-95": self.box_map50_95, "box mAP50": self.box_map50}
        sizes = {f"{self.metric} {size}": value for size, value in self.by_size.items()}
        return found | {name: value for name, value in boxes.items() if value is not None} | sizes


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """The accuracy of a classifier as fractions of images, 0 to 1.

    Attributes:
        images: number of images.
        top1: fraction of images whose best class is the label.
        top5: fraction of images with the label among the best five classes.
        per_class: name or number of each class -> `top1` of the images with this label.
    """

    metric: ClassVar[str] = "top-1"

    images: int
    top1: float
    top5: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.top1

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value over all classes."""
        return {self.metric: self.top1, "top-5": self.top5}


@dataclass(frozen=True, slots=True)
class MapAccuracy:
    """The accuracy of semantic segmentation over all labelled pixels, 0 to 1.

    Attributes:
        images: number of images.
        miou: mean of the values in `per_class`.
        pixel_accuracy: fraction of pixels with the correct class.
        per_class: name or number of each class -> intersection over union of the class's pixels.
    """

    metric: ClassVar[str] = "mIoU"

    images: int
    miou: float
    pixel_accuracy: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.miou

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value over all classes."""
        return {self.metric: self.miou, "pixel accuracy": self.pixel_accuracy}


@dataclass(frozen=True, slots=True)
class MatchAccuracy:
    """The accuracy of embeddings as fractions of images, 0 to 1.

    Attributes:
        images: number of query images. Each query image is compared with all other images.
        recall1: fraction of query images whose most similar image shows the same person or object.
        recall5: fraction of query images for which one of the five most similar images shows the
            same person or object.
        per_class: name of each person or object -> `recall1` of the query images that show it.
    """

    metric: ClassVar[str] = "recall@1"

    images: int
    recall1: float
    recall5: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.recall1

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value over all classes."""
        return {self.metric: self.recall1, "recall@5": self.recall5}


@dataclass(frozen=True, slots=True)
class TextAccuracy:
    """The accuracy of a text recogniser.

    Attributes:
        images: number of images.
        exact: fraction of images whose text is completely correct, 0 to 1.
        similarity: mean over images of 1 - (edit distance / length of the longer text), 0 to 1.
        character_errors: sum of the edit distances of all texts, divided by the number of
            characters in all labels.
    """

    metric: ClassVar[str] = "exact match"

    images: int
    exact: float
    similarity: float
    character_errors: float

    @property
    def per_class(self) -> dict[str, float]:
        """Return an empty dictionary, because texts have no classes."""
        return {}

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.exact

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value."""
        return {
            self.metric: self.exact,
            "edit similarity": self.similarity,
            "character error rate": self.character_errors,
        }


@dataclass(frozen=True, slots=True)
class AttributeAccuracy:
    """The accuracy of a model with several attributes, as fractions of images, 0 to 1.

    Attributes:
        images: number of images.
        mean: mean of the values in `per_class`.
        all_right: fraction of images for which every attribute is correct.
        per_class: name of each attribute -> fraction of images for which this attribute is correct.
    """

    metric: ClassVar[str] = "mean accuracy"

    images: int
    mean: float
    all_right: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.mean

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value over all attributes."""
        return {self.metric: self.mean, "all attributes right": self.all_right}


@dataclass(frozen=True, slots=True)
class PictureAccuracy:
    """The similarity of generated images to the correct images, as means over images.

    Attributes:
        images: number of images.
        ssim: structural similarity of the three channels, up to 1 (Wang et al. 2004).
        psnr: peak signal-to-noise ratio over the three channels in dB, at most 100.
    """

    metric: ClassVar[str] = "SSIM"

    images: int
    ssim: float
    psnr: float

    @property
    def per_class(self) -> dict[str, float]:
        """Return an empty dictionary, because generated images have no classes."""
        return {}

    @property
    def figure(self) -> float:
        """Return the figure that decides whether an engine is accepted. `metric` is its name."""
        return self.ssim

    @property
    def rows(self) -> dict[str, float | None]:
        """Return a mapping from the description of each figure to its value."""
        return {self.metric: self.ssim, "PSNR, dB": self.psnr}


AnyAccuracy = (
    Accuracy
    | ClassAccuracy
    | MapAccuracy
    | MatchAccuracy
    | TextAccuracy
    | AttributeAccuracy
    | PictureAccuracy
)
"""Accuracy of an engine, for any task."""


def accuracy_table(accuracy: Mapping[str, AnyAccuracy]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table with one column for each entry of `accuracy`.

    The columns of precisions come first.
    """
    names = sorted(accuracy, key=lambda name: name not in get_args(Precision))
    columns = [accuracy[name].rows for name in names]
    rows = [[label, *(_figure(column[label]) for column in columns)] for label in columns[0]]
    return ["", *names], rows


def _figure(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3f}"
