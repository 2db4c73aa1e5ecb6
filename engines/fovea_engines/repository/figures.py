"""Defines the measured figures of an engine's card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from fovea_preprocess.text import counted

Precision = Literal["fp32", "bf16", "fp16", "int8"]
Goal = Literal["throughput", "latency"]
"""Most images/s of parallel calls with a core each, or least time of a lone call with all cores."""

Overlap = Literal["IoU", "mask IoU", "OKS", "rotated IoU"]
"""By what objects are compared: boxes, masks, keypoints (COCO's similarity), or rotated boxes."""

SHIPPED: Final = "photographs that ship with Fovea"
"""Stands for the folder of images where a build was given none."""

NO_FIGURE: Final = "-"
_NAMES_SHOWN = 8
_SAME = 0.98


@dataclass(frozen=True, slots=True)
class StageAgreement:
    """Agreement of a stage with the reference of its pipeline.

    Attributes:
        engine: that answers for it, and the one it has replaced since the reference, for people.
        objects: of the reference; of a later stage, those of them that it saw then and now.
        agreement: 0 to 1; 0, too, if it saw objects then or now, and none twice.
        differs: the largest difference, and names that have changed, for people; or empty.
        undo: the command by which the engine of the reference answers again; empty if none does.
    """

    stage: str
    engine: str
    objects: int
    agreement: float
    differs: str
    undo: str

    @property
    def same(self) -> bool:
        """Return True if it answers as before, as closely as an engine in FP16 would."""
        return self.agreement >= _SAME


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
    """Comparison of the built engine with its source model, run as it is.

    Attributes:
        images_from: name of their folder, or `SHIPPED`; None in cards of older builds.
        detections: compared detections of the source model, in FP32 before suppression; 0 without a
            known head.
        missed: detections that only the source has, after suppression.
        extra: detections that only the engine has, after suppression.
        overlap: by what they are compared.
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
            models, and so is `same_order`.
        same_order: share of the source's first five classes that are in the same place.
        shared: how far the results of both are the same, 0 to 1, where they are neither objects
            nor classes; None for other models.
        shares: what `shared` measures, for people.
        worst: the images that lower the quality most, by `lost`; none when all agree fully.
        replaced: number of images on which the source was run by OpenVINO, as what ONNX Runtime
            computes there is not finite.
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
    same_order: float | None = None
    images_from: str | None = None
    worst: tuple[WorstImage, ...] = ()
    overlap: Overlap = "IoU"
    shared: float | None = None
    shares: str = "maps"  # of cards of older builds
    replaced: int = 0

    def text(self, precision: Precision) -> str:
        """Describe the agreement of an engine of a precision in one line."""
        return "; ".join(filter(None, (self._text(precision), self.replaced_text)))

    @property
    def replaced_text(self) -> str:
        """Describe on how many images OpenVINO is the reference, and why; "" for none."""
        if not self.replaced:
            return ""
        return (
            f"the reference is OpenVINO on {self.replaced} of {counted(self.images, 'image')}, "
            "where what ONNX Runtime computes is NaN or infinite"
        )

    def _text(self, precision: Precision) -> str:
        images = self.images_text
        if precision == "fp32" and self.detections:
            return (
                f"{counted(self.detections, 'box')} before suppression, on {images}, within "
                f"{self.box_px:.2g} px (weighted by score), their scores within {self.score:.2g}"
            )
        if self._has_detections:
            return (
                f"{counted(self.detections, 'detection')} on {images}: {self.missed} missed, "
                f"{self.extra} extra, mean {self.overlap} {_figure(self.mean_iou)}, scores "
                f"{_change(self.score_drift)}; quality {self.quality:.3f} of 1"
            )
        if self.shared is not None and precision != "fp32":
            return f"{self.shares} agree {self.shared:.2%} on {images}"
        same_top = "" if self.same_top is None else f", first class the same on {self.same_top:.1%}"
        if self.same_order is not None:
            same_top += (
                f", {self.same_order:.1%} of the first five in place, "
                f"scores {_change(self.score_drift)}"
            )
        quality = "" if precision == "fp32" else f"; quality {self.quality:.3f} of 1"
        return f"outputs within {self.output_error:.2g} on {images}{same_top}{quality}"

    def rows(self, precision: Precision) -> dict[str, str]:
        """Return each figure as text, by its description."""
        rows = {"images": str(self.images)}
        if self.replaced:
            rows["of these with OpenVINO as the reference"] = str(self.replaced)
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
                f"mean {self.overlap} of those that both find": _figure(self.mean_iou),
                "mean change of their scores": _change(self.score_drift),
                "quality, 0 to 1 (overlap and stage results in one)": f"{self.quality:.3f}",
            }
        if self.same_top is not None:
            rows["first class the same"] = f"{self.same_top:.1%}"
        if self.same_order is not None:
            rows["of the first five classes in the same place"] = f"{self.same_order:.1%}"
            rows["mean change of their scores"] = _change(self.score_drift)
        if self.shared is not None:
            rows[f"agreement of {self.shares}"] = f"{self.shared:.2%}"
        return rows | {
            "largest difference of an output, over its largest value": f"{self.output_error:.2g}",
            "quality, 0 to 1 (1 less the relative error)": f"{self.quality:.3f}",
        }

    @property
    def least(self) -> float:
        """Return the quality, or the share of images with the same first class where it is less."""
        return self.quality if self.same_top is None else min(self.quality, self.same_top)

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


Method = Literal["percentile", "minmax", "entropy", "mse"]
"""The ways to choose the range of a tensor from the values that it had."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Source of an INT8 engine's ranges.

    Attributes:
        method: "percentile", "minmax", "entropy" or "mse".
        images_sha256: over their bytes, in their order.
        preprocess_sha256: digest of the preprocessing, the same as in serving.
        layers: number of layers that multiply integers.
        kept_float: names of the quantisable layers that stay float.
        reused: the ranges come from an earlier build of the same model and images.
        gains: agreement that each block gains in float, largest first; empty without a search.
        remarks: what the images lack, and what to do.
    """

    method: str
    images: int
    images_sha256: str
    preprocess_sha256: str
    layers: int
    kept_float: tuple[str, ...]
    reused: bool
    gains: dict[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

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
class CandidateFigures:
    """A backend and a precision that a build could choose.

    Attributes:
        alone_ms: median time of a decoded image, from letterbox to boxes, with all cores,
            milliseconds; None where it was not timed, and so is `images_per_s`.
        images_per_s: median rate of such images in parallel, one core each.
        quality: agreement with the source model, 0 to 1; None where it was not verified.
        accuracy: on labelled images, in the `metric`; None without them.
        problem: reason why it could not be chosen.
        kept: it is the engine.
    """

    backend: str
    precision: Precision
    alone_ms: float | None = None
    images_per_s: float | None = None
    quality: float | None = None
    accuracy: float | None = None
    metric: str | None = None
    problem: str | None = None
    kept: bool = False


def candidate_table(
    candidates: Sequence[CandidateFigures], goal: Goal
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with a row for each candidate."""
    # Labels decide if there are any.
    labelled = next((one.metric for one in candidates if one.metric is not None), None)
    rows = [
        [
            one.backend,
            one.precision,
            _digits(one.alone_ms),
            _digits(one.images_per_s),
            _figure(one.accuracy if labelled else one.quality),
            _outcome(one, candidates, goal),
        ]
        for one in candidates
    ]
    return [
        "backend",
        "precision",
        "ms, one\nimage",
        "images/s,\nparallel",
        labelled or "agreement",
        f"chosen by\n{'ms' if goal == 'latency' else 'images/s'}",
    ], rows


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
    # By its figure it is faster, but not in three rounds of four.
    return "not faster" if faster else "slower"


def left_out_text(candidates: Sequence[CandidateFigures]) -> str:
    """Return the reasons why candidates were left out, one a line."""
    names: dict[str, list[str]] = {}
    for one in candidates:
        if one.problem:
            names.setdefault(one.problem, []).append(f"{one.backend} {one.precision}")
    return "\n".join(f"{', '.join(those)}: {problem}" for problem, those in names.items())


def _digits(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _figure(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3f}"


def _change(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:+.3f}"
