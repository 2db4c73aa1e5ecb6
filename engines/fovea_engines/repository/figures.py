"""What was measured of an engine: values for its card."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorstImage:
    """An image on which an engine loses most of what its source finds.

    Attributes:
        name: its file name.
        quality: as in `Agreement`, of this image alone.
        lost: half a detection for each that is missed or extra, and for each that both find what
            its overlap falls short of 1; without detections 1 minus the quality.
        missed: as in `Agreement`, of this image alone; None without a known head.
        extra: likewise.
    """

    name: str
    quality: float
    lost: float = 0.0
    missed: int | None = None
    extra: int | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the built engine compares with its source model, run by plain ONNX Runtime.

    Attributes:
        images: sample images compared.
        images_from: name of their folder, or `SHIPPED`; None in cards of older builds.
        detections: detections of the source model that were compared, in FP32 those before
            suppression; 0 without a known head.
        missed: how many of the source's the engine does not find, after suppression.
        extra: how many the engine finds that the source does not, likewise.
        mean_iou: mean overlap of those that both find; None where there are none.
        score_drift: mean of the engine's score minus the source's; None likewise.
        quality: panoptic quality of the detections, 0 to 1: overlap and findings in one; where
            there are none, 1 minus the relative error of the outputs.
        box_px: largest difference of a box corner, pixels of the model's input; in FP32 weighted
            by score, see `IdentityCheck`.
        score: largest difference of a score.
        output_error: largest difference of a raw output, over that output's largest value; 1e30
            where one is no number or of another shape. An end-to-end head sorts its rows, so two
            of equal score that swapped count in full.
        same_top: share of images on which a classifier's first class is the same; None for
            other models.
        worst: the images that cost the quality most, by `lost`; none when all agree fully.
    """

    images: int
    detections: int
    box_px: float
    score: float
    output_error: float
    missed: int = 0
    extra: int = 0
    mean_iou: float | None = None
    score_drift: float | None = None
    quality: float = 1.0
    same_top: float | None = None
    images_from: str | None = None
    worst: tuple[WorstImage, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the ranges of an INT8 engine were measured from.

    Attributes:
        method: "minmax", "entropy" or "percentile".
        images: images seen.
        images_sha256: over their bytes, in their order.
        preprocess_sha256: digest of the preprocessing they went through: the one that serves.
        layers: how many layers multiply integers.
        kept_float: names of layers that were left in float, though they could be quantised.
        reused: the ranges come from an earlier build of the same model and images.
        gains: agreement that each block gains in float, most first; empty without a search.
    """

    method: str
    images: int
    images_sha256: str
    preprocess_sha256: str
    layers: int
    kept_float: tuple[str, ...]
    reused: bool
    gains: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How accurate a detector is: average precisions, 0 to 1.

    Attributes:
        images: images it was measured on.
        map50_95: mean over classes and over the overlaps .50, .55 ... .95 that a hit needs.
        map50: mean over classes at overlap .50.
        per_class: `map50_95` of each class that occurs in the labels, by name; by number where
            classes have no names.
        by_size: `map50_95` of "small" (area under 32² pixels), "medium" and "large" (over 96²)
            objects; None where there are none.
    """

    images: int
    map50_95: float
    map50: float
    per_class: dict[str, float]
    by_size: dict[str, float | None]
