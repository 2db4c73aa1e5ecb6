"""Defines the measured figures of an engine's card."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorstImage:
    """An image on which an engine loses most of the source's detections; see `Agreement`.

    Attributes:
        quality: of this image alone.
        lost: half a detection for each that is missed or extra, and 1 minus the overlap for each
            that both find; without detections 1 minus the quality.
        missed: of this image alone; None without a known head.
        extra: of this image alone; None without a known head.
    """

    name: str
    quality: float
    lost: float = 0.0
    missed: int | None = None
    extra: int | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of the built engine with its source model, run by plain ONNX Runtime.

    Attributes:
        images: number of compared images.
        images_from: name of their folder, or `SHIPPED`; None in cards of older builds.
        detections: compared detections of the source model, in FP32 before suppression; 0 without a
            known head.
        missed: detections that only the source has, after suppression.
        extra: detections that only the engine has, after suppression.
        mean_iou: mean overlap of those that both find; None where there are none.
        score_drift: mean of the engine's score minus the source's; None where there are none.
        quality: panoptic quality of the detections, 0 to 1, which combines overlap and matches;
            without detections, 1 minus the relative error of the outputs.
        box_px: largest difference of a box corner, pixels of the model's input; in FP32 weighted by
            score, see `IdentityCheck`.
        score: largest difference of a score.
        output_error: largest difference of a raw output, over that output's largest value; 1e30
            where one is NaN or has another shape. An end-to-end head sorts its rows, so two swapped
            rows of equal score count in full.
        same_top: share of images on which a classifier's first class is the same; None for other
            models.
        worst: the images that lower the quality most, by `lost`; none when all agree fully.
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
    """Source of an INT8 engine's ranges.

    Attributes:
        method: "minmax", "entropy" or "percentile".
        images_sha256: over their bytes, in their order.
        preprocess_sha256: digest of the preprocessing, the same as in serving.
        layers: number of layers that multiply integers.
        kept_float: names of the quantisable layers that stay float.
        reused: the ranges come from an earlier build of the same model and images.
        gains: agreement that each block gains in float, largest first; empty without a search.
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
    """Accuracy of a detector as average precisions, 0 to 1.

    Attributes:
        map50_95: mean over classes and over the overlaps .50, .55 ... .95 that a match needs.
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
