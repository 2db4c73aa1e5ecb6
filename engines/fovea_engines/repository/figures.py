"""Defines the measured figures of an engine's card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from fovea_engines.plural import counted

Precision = Literal["fp32", "bf16", "fp16", "int8"]
Goal = Literal["throughput", "latency"]
"""Most images/s of parallel calls with a core each, or least time of a lone call with all cores."""

SHIPPED: Final = "photographs that ship with Fovea"
"""Stands for the folder of images where a build was given none."""

NO_FIGURE: Final = "-"
_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class WorstImage:
    """An image on which an engine loses most of the source's detections; see `Agreement`.

    Attributes:
        lost: half a detection for each that is missed or extra, and 1 minus the overlap for each
            that both find; without detections 1 minus the quality.
        missed: None without a known head, and so is `extra`.
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

    def text(self, precision: Precision) -> str:
        """Describe the agreement of an engine of a precision in one line."""
        images = self.images_text
        if precision == "fp32" and self.detections:
            return (
                f"{counted(self.detections, 'box')} before suppression, on {images}, within "
                f"{self.box_px:.2g} px (weighted by score), their scores within {self.score:.2g}"
            )
        if self._has_detections:
            return (
                f"{counted(self.detections, 'detection')} on {images}: {self.missed} missed, "
                f"{self.extra} extra, mean IoU {_figure(self.mean_iou)}, scores "
                f"{_change(self.score_drift)}; quality {self.quality:.3f} of 1"
            )
        same_top = "" if self.same_top is None else f", first class the same on {self.same_top:.1%}"
        quality = "" if precision == "fp32" else f"; quality {self.quality:.3f} of 1"
        return f"outputs within {self.output_error:.2g} on {images}{same_top}{quality}"

    def rows(self, precision: Precision) -> dict[str, str]:
        """Return each figure as text, by its description."""
        rows = {"images": str(self.images)}
        if precision == "fp32" and self.detections:
            return rows | {
                "boxes compared, before suppression": str(self.detections),
                "farthest corner of a box, weighted by score": f"{self.box_px:.2g} px",
                "largest difference of a score": f"{self.score:.2g}",
            }
        if self._has_detections:
            return rows | {
                "detections of the source model": str(self.detections),
                "missed by the engine": str(self.missed),
                "extra, found by the engine only": str(self.extra),
                "mean IoU of those that both find": _figure(self.mean_iou),
                "mean change of their scores": _change(self.score_drift),
                "quality, 0 to 1 (overlap and findings in one)": f"{self.quality:.3f}",
            }
        if self.same_top is not None:
            rows["first class the same"] = f"{self.same_top:.1%}"
        return rows | {
            "largest difference of an output, over its largest value": f"{self.output_error:.2g}",
            "quality, 0 to 1 (1 less the relative error)": f"{self.quality:.3f}",
        }

    @property
    def images_text(self) -> str:
        """Describe the compared images."""
        if self.images_from == SHIPPED:
            return f"{self.images} {SHIPPED}"
        of = "" if self.images_from is None else f" of {self.images_from}"
        return f"{counted(self.images, 'image')}{of}"

    @property
    def _has_detections(self) -> bool:
        return bool(self.detections or self.extra)


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

    @property
    def layers_text(self) -> str:
        """Describe the layers in INT8, and those kept in float."""
        kept = self.kept_float
        if not kept:
            return f"{counted(self.layers, 'layer')} in INT8"
        more = f" and {len(kept) - _NAMES_SHOWN} more" if len(kept) > _NAMES_SHOWN else ""
        names = ", ".join(kept[:_NAMES_SHOWN]) + more
        return f"{counted(self.layers, 'layer')} in INT8, {len(kept)} kept in float: {names}"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a detector as average precisions, 0 to 1.

    Attributes:
        map50_95: mean over classes and over the overlaps .50, .55 ... .95 that a match needs.
        map50: mean over classes at overlap .50.
        per_class: `map50_95` of each class that occurs in the labels, by name, or else by number.
        by_size: `map50_95` of "small" (area under 32² pixels), "medium" and "large" (over 96²)
            objects; None where there are none.
    """

    images: int
    map50_95: float
    map50: float
    per_class: dict[str, float]
    by_size: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """A backend and a precision that a build could choose.

    Attributes:
        alone_ms: median time of a single call with one image, with all cores, milliseconds; None
            where it was not timed, and so is `images_per_s`.
        images_per_s: median rate of parallel calls with one image and one core each.
        quality: agreement with the source model, 0 to 1; None where it was not verified.
        map50_95: on labelled images; None without them.
        problem: reason why it could not be chosen.
        kept: it is the engine.
    """

    backend: str
    precision: Precision
    alone_ms: float | None = None
    images_per_s: float | None = None
    quality: float | None = None
    map50_95: float | None = None
    problem: str | None = None
    kept: bool = False


def candidate_table(
    candidates: Sequence[CandidateFigures], goal: Goal
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with a row for each candidate."""
    # Labels decide if there are any.
    labelled = any(one.map50_95 is not None for one in candidates)
    decides = "mAP50-95" if labelled else "agreement"
    rows = [
        [
            one.backend,
            one.precision,
            _digits(one.alone_ms),
            _digits(one.images_per_s),
            _figure(one.map50_95 if labelled else one.quality),
            _outcome(one, candidates, goal),
        ]
        for one in candidates
    ]
    return ["backend", "precision", "ms alone", "images/s", decides, f"for\n{goal}"], rows


def _outcome(one: CandidateFigures, candidates: Sequence[CandidateFigures], goal: Goal) -> str:
    if one.problem is not None:
        return "left out"
    if one.kept:
        return "kept"
    kept = next((other for other in candidates if other.kept), one)
    if goal == "latency":
        faster = (one.alone_ms or 0.0) < (kept.alone_ms or 0.0)
    else:
        faster = (one.images_per_s or 0.0) > (kept.images_per_s or 0.0)
    return "as fast" if faster else "slower"


def left_out_text(candidates: Sequence[CandidateFigures]) -> str:
    """Return the reasons why candidates were left out, one a line."""
    names: dict[str, list[str]] = {}
    for one in candidates:
        if one.problem:
            names.setdefault(one.problem, []).append(f"{one.backend} {one.precision}")
    return "\n".join(f"{', '.join(those)}: {problem}" for problem, those in names.items())


def accuracy_table(accuracy: Mapping[str, Accuracy]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with a column for each precision, others last."""
    names = sorted(accuracy, key=lambda name: name not in get_args(Precision))
    figures = [accuracy[name] for name in names]
    rows = [
        ["mAP50-95", *(_figure(one.map50_95) for one in figures)],
        ["mAP50", *(_figure(one.map50) for one in figures)],
        *(
            [f"mAP50-95 {size}", *(_figure(one.by_size[size]) for one in figures)]
            for size in figures[0].by_size
        ),
    ]
    return ["", *names], rows


def _digits(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _figure(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3f}"


def _change(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:+.3f}"
