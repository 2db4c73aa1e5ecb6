"""The measured figures in an engine's card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from fovea_preprocess.text import counted

Precision = Literal["fp32", "bf16", "fp16", "int8"]
Goal = Literal["throughput", "latency"]
"""Criterion of a build's choice.

"throughput": most images per second of parallel calls with one core each. "latency": shortest time
of a single call with all cores.
"""

Overlap = Literal["IoU", "mask IoU", "OKS", "rotated IoU"]
"""Overlap of objects: of boxes, masks, keypoints (COCO's OKS), or rotated boxes."""

SHIPPED: Final = "photographs that ship with Fovea"
"""Name of the image directory in figures of a build without its own images."""

NO_FIGURE: Final = "-"
_NAMES_SHOWN = 8
_SAME = 0.98


@dataclass(frozen=True, slots=True)
class StageAgreement:
    """Agreement of a pipeline's stage with a recorded reference.

    Attributes:
        stage: name of the stage.
        engine: text about the engine of the stage, and the engine that it replaced since the
            reference.
        objects: number of objects in the reference; for a later stage, of objects that it saw both
            times.
        agreement: 0 to 1; also 0 if the stage saw objects, but none of them both times.
        differs: text about the largest difference and changed names; may be empty.
        undo: command that makes the engine of the reference current again; empty if there is none.
    """

    stage: str
    engine: str
    objects: int
    agreement: float
    differs: str
    undo: str

    @property
    def same(self) -> bool:
        """Return True if the results of the stage changed no more than an engine in FP16 would."""
        return self.agreement >= _SAME


@dataclass(frozen=True, slots=True)
class WorstImage:
    """An image on which an engine loses many of the source's detections; see `Agreement`.

    Attributes:
        name: name of the image.
        quality: quality of the image, 0 to 1.
        lost: half a detection for each missed or extra detection, plus 1 minus the overlap for each
            shared detection. Without detections, 1 minus the quality.
        missed: number of detections that only the source has; None without a known head.
        extra: number of detections that only the engine has; None without a known head.
    """

    name: str
    quality: float
    lost: float = 0.0
    missed: int | None = None
    extra: int | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of the built engine with its unchanged source model.

    Attributes:
        images: number of images.
        detections: number of compared detections of the source model, in FP32 before NMS; 0 without
            a known head.
        box_px: largest difference of a box corner, in pixels of the model's input. In FP32 it is
            weighted by the score, see `IdentityCheck`.
        score: largest difference of a score.
        output_error: largest difference of a raw output, divided by the largest value of this
            output. It is 1e30 if a value is NaN or a shape differs. An end-to-end head sorts its
            rows, so two swapped rows of equal score count in full.
        missed: number of detections that only the source has, after NMS.
        extra: number of detections that only the engine has, after NMS.
        mean_iou: mean overlap of shared detections; None if there are none.
        score_drift: mean of the engine's score minus the source's score; None if there are none.
        quality: panoptic quality of the detections, 0 to 1, which combines overlap and matches.
            Without detections, 1 minus the relative error of the outputs.
        same_top: fraction of images with the same best class; None for models other than
            classifiers.
        same_order: fraction of the source's best five classes at the same rank; None for other
            models.
        images_from: name of the image directory, or `SHIPPED`; None in cards of older builds.
        worst: images that lower the quality most, by `lost`; empty if all agree fully.
        overlap: kind of overlap that compares detections.
        shared: fraction of equal results, 0 to 1, for models without objects and classes; None for
            other models.
        shares: what `shared` compares, for people.
        replaced: number of images on which OpenVINO ran the source, because ONNX Runtime computed
            NaN or infinite values.
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
    shares: str = "maps"  # default for cards of older builds
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
        """Return the figures as text, by description."""
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
        """Return the smaller of quality and `same_top`."""
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
"""Methods that derive the range of a tensor from its values."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Source of the ranges of an INT8 engine.

    Attributes:
        method: "percentile", "minmax", "entropy" or "mse".
        images: number of calibration images.
        images_sha256: SHA-256 of the bytes of all images in order.
        preprocess_sha256: digest of the preprocessing, which serving also uses.
        layers: number of layers with integer multiplications.
        kept_float: names of the quantisable layers that stay float.
        reused: True if the ranges come from an earlier build of the same model and images.
        gains: block -> agreement that it gains in float, largest first; empty without a search.
        remarks: deficiencies of the images, and advice.
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
        """Describe the layers in INT8, and the layers kept in float."""
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
        backend: name of the backend.
        precision: precision of the engine.
        alone_ms: median time in milliseconds for one decoded image, from letterbox to boxes, with
            all cores; None if it was not measured.
        images_per_s: median rate of such images in parallel calls with one core each; None if it
            was not measured.
        quality: agreement with the source model, 0 to 1; None if it was not verified.
        accuracy: accuracy on labelled images; None without labels.
        metric: name of the accuracy; None without labels.
        problem: reason why it could not be chosen; None if it could.
        kept: True for the chosen engine.
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
    # The accuracy decides if there are labels.
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
    # Its median is faster, but not in three of four rounds.
    return "not faster" if faster else "slower"


def left_out_text(candidates: Sequence[CandidateFigures]) -> str:
    """Return the reasons why candidates were left out, one line per reason."""
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
