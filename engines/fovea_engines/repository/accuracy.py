"""Defines the measured accuracy on labelled images in an engine's card."""

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
    """Accuracy of a detector as average precisions, 0 to 1.

    Attributes:
        map50_95: mean over classes and over the overlaps .50, .55 ... .95 that a match needs.
        map50: mean over classes at overlap .50.
        per_class: `map50_95` of each class that occurs in the labels, by name, or else by number.
        by_size: `map50_95` of "small" (area under 32² pixels), "medium" and "large" (over 96²)
            objects; None where there are none.
        overlap: of what a match needs it.
        box_map50_95: `map50_95` of the boxes, where that is of masks or keypoints; so is
            `box_map50`.
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
        """Return the name of `figure`."""
        return {"mask IoU": "mask mAP50-95", "OKS": "OKS mAP50-95"}.get(self.overlap, "mAP50-95")

    @property
    def compared(self) -> str:
        """Return the name of what overlaps, for people."""
        return _COMPARED[self.overlap]

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.map50_95

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure of all classes by its description."""
        found = {self.metric: self.map50_95, self.metric.removesuffix("-95"): self.map50}
        boxes = {"box mAP50-95": self.box_map50_95, "box mAP50": self.box_map50}
        sizes = {f"{self.metric} {size}": value for size, value in self.by_size.items()}
        return found | {name: value for name, value in boxes.items() if value is not None} | sizes


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """Accuracy of a classifier as shares of images, 0 to 1.

    Attributes:
        top1: whose first class is that of the label.
        top5: with the class of the label among the first five.
        per_class: `top1` of the images of each class, by name, or else by number.
    """

    metric: ClassVar[str] = "top-1"

    images: int
    top1: float
    top5: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.top1

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure of all classes by its description."""
        return {self.metric: self.top1, "top-5": self.top5}


@dataclass(frozen=True, slots=True)
class MapAccuracy:
    """Accuracy of semantic segmentation, 0 to 1, over all labelled pixels.

    Attributes:
        miou: mean over the classes in the labels of `per_class`.
        pixel_accuracy: share of the pixels whose class is right.
        per_class: intersection over union of the pixels of each class, by name, or else by number.
    """

    metric: ClassVar[str] = "mIoU"

    images: int
    miou: float
    pixel_accuracy: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.miou

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure of all classes by its description."""
        return {self.metric: self.miou, "pixel accuracy": self.pixel_accuracy}


@dataclass(frozen=True, slots=True)
class MatchAccuracy:
    """Accuracy of embeddings as shares of images, 0 to 1.

    Attributes:
        images: that were looked for, each among all others.
        recall1: whose best match is of the same person or thing.
        recall5: with such a match among the first five.
        per_class: `recall1` of the images of each, by name.
    """

    metric: ClassVar[str] = "recall@1"

    images: int
    recall1: float
    recall5: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.recall1

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure of all classes by its description."""
        return {self.metric: self.recall1, "recall@5": self.recall5}


@dataclass(frozen=True, slots=True)
class TextAccuracy:
    """Accuracy of a recogniser of text.

    Attributes:
        exact: share of the images whose text is right to the last character.
        similarity: mean of 1 less the edit distance over the length of the longer text.
        character_errors: edits of all texts, over the characters of all labels.
    """

    metric: ClassVar[str] = "exact match"

    images: int
    exact: float
    similarity: float
    character_errors: float

    @property
    def per_class(self) -> dict[str, float]:
        """Return nothing: texts have no classes."""
        return {}

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.exact

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure by its description."""
        return {
            self.metric: self.exact,
            "edit similarity": self.similarity,
            "character error rate": self.character_errors,
        }


@dataclass(frozen=True, slots=True)
class AttributeAccuracy:
    """Accuracy of several classifiers as shares of images, 0 to 1.

    Attributes:
        mean: of `per_class`.
        all_right: of the images, those with every attribute right.
        per_class: the share of images whose attribute is right, by its name.
    """

    metric: ClassVar[str] = "mean accuracy"

    images: int
    mean: float
    all_right: float
    per_class: dict[str, float]

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.mean

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure of all attributes by its description."""
        return {self.metric: self.mean, "all attributes right": self.all_right}


@dataclass(frozen=True, slots=True)
class PictureAccuracy:
    """Closeness of pictures to the right ones, as means over images.

    Attributes:
        ssim: structural similarity, up to 1 (Wang et al. 2004), of the three channels.
        psnr: peak signal-to-noise ratio of the three channels together, dB; 100 at most.
    """

    metric: ClassVar[str] = "SSIM"

    images: int
    ssim: float
    psnr: float

    @property
    def per_class(self) -> dict[str, float]:
        """Return nothing: pictures have no classes."""
        return {}

    @property
    def figure(self) -> float:
        """Return the figure that decides, `metric`."""
        return self.ssim

    @property
    def rows(self) -> dict[str, float | None]:
        """Return each figure by its description."""
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
"""Each task has one type."""


def accuracy_table(accuracy: Mapping[str, AnyAccuracy]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with a column for each precision, others last."""
    names = sorted(accuracy, key=lambda name: name not in get_args(Precision))
    columns = [accuracy[name].rows for name in names]
    rows = [[label, *(_figure(column[label]) for column in columns)] for label in columns[0]]
    return ["", *names], rows


def _figure(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3f}"
