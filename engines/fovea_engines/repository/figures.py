"""Defines the measured figures that an engine's card stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from fovea_preprocess.text import counted

Precision = Literal["fp32", "bf16", "fp16", "int8"]
Goal = Literal["throughput", "latency"]
"""Criterion by which a build chooses between backends and precisions.

"throughput" chooses the most images per second in parallel calls with one core each. "latency"
chooses the shortest time of a single call with all cores.
"""

Overlap = Literal["IoU", "mask IoU", "OKS", "rotated IoU"]
"""Kind of overlap between two objects.

It compares boxes, masks, keypoints (COCO's OKS) or rotated boxes.
"""

SHIPPED: Final = "photographs that ship with Fovea"
"""Text in place of a directory's name, if a build used the photographs that ship with Fovea."""

NO_FIGURE: Final = "-"
_NAMES_SHOWN = 8
_SAME = 0.98


@dataclass(frozen=True, slots=True)
class StageAgreement:
    """The agreement of a pipeline's stage with a recorded reference.

    Attributes:
        stage: name of the stage.
        engine: text about the stage's engine. If the engine was replaced since the reference was
            recorded, the text also names the earlier engine.
        objects: for the first stage, number of objects in the reference. For a later stage, number
            of objects that the stage received both now and in the reference.
        agreement: agreement, 0 to 1. It is 0 if the stage received objects, but no object both now
            and in the reference.
        differs: text about the largest difference and about changed names; may be empty.
        undo: command that makes the reference's engine current again; empty if there is no such
            command.
    """

    stage: str
    engine: str
    objects: int
    agreement: float
    differs: str
    undo: str

    @property
    def same(self) -> bool:
        """Return whether the stage's results changed at most as much as by a conversion to FP16."""
        return self.agreement >= _SAME


@dataclass(frozen=True, slots=True)
class WorstImage:
    """An image on which an engine loses many of the source's detections; see `Agreement`.

    Attributes:
        name: name of the image.
        quality: quality of the image, 0 to 1.
        lost: loss on this image: 0.5 for each missed or extra detection, plus 1 - overlap for each
            detection that both models have. If the model is not a detector, 1 - quality.
        missed: number of detections that only the source has; None if the model is not a detector.
        extra: number of detections that only the engine has; None if the model is not a detector.
    """

    name: str
    quality: float
    lost: float = 0.0
    missed: int | None = None
    extra: int | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of a comparison of a built engine with its unchanged source model.

    Attributes:
        images: number of compared images.
        detections: number of the source's detections that were compared. For an FP32 engine, they
            are boxes before NMS. 0 if the model is not a detector.
        box_px: largest difference of a box coordinate in pixels of the model's input. For an FP32
            engine, differences are weighted by the box's score (see `IdentityCheck`).
        score: largest difference of a score.
        output_error: largest difference of an output's values, divided by the largest value of this
            output. It is 1e30 if a value is NaN or a shape differs. If an end-to-end model swaps
            two rows of equal scores, this counts as a difference.
        missed: number of detections after NMS that only the source has.
        extra: number of detections after NMS that only the engine has.
        mean_iou: mean overlap of the detections that both have; None if there are no such
            detections.
        score_drift: mean of the engine's score minus the source's score; None if no scores were
            compared.
        quality: agreement as one figure, 0 to 1. For detectors, it is the panoptic quality of the
            detections, which combines overlaps and matches. For other models, it is 1 - relative
            error of the outputs.
        same_top: fraction of images for which both models return the same best class; None if the
            model is not a classifier.
        same_order: fraction of the source's best five classes that have the same rank in the
            engine's result; None if the model is not a classifier.
        images_from: name of the image directory, or `SHIPPED` for the photographs in the package;
            None in cards of older builds.
        worst: images on which the engine differs most from the source, the worst first; empty if
            all images agree completely.
        overlap: kind of overlap by which detections are compared.
        shared: agreement of the results, 0 to 1, for tasks whose results are maps, vectors or
            texts; None for detectors and classifiers.
        shares: text about the results that `shared` compares, e.g. "maps".
        replaced: number of images for which OpenVINO ran the source model, because ONNX Runtime
            computed NaN or infinite values.
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
        """Return one line of text about the agreement of an engine of this precision."""
        return "; ".join(filter(None, (self._text(precision), self.replaced_text)))

    @property
    def replaced_text(self) -> str:
        """Return a text about the images for which OpenVINO is the reference.

        If there are no such images, return "".
        """
        if not self.replaced:
            return ""
        return (
            f"OpenVINO is the reference on {self.replaced} of {counted(self.images, 'image')}, "
            "because ONNX Runtime computes NaN or infinity there"
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
        """Return a mapping from the description of each figure to the figure as text."""
        rows = {"images": str(self.images)}
        if self.replaced:
            rows["of these with OpenVINO as the reference"] = str(self.replaced)
        if precision == "fp32" and self.detections:
            return rows | {
                "boxes compared, before suppression": str(self.detections),
                "largest box difference, weighted by score": f"{self.box_px:.2g} px",
                "largest difference of a score": f"{self.score:.2g}",
            }
        if self._has_detections:
            return rows | {
                "detections of the source model": str(self.detections),
                "missed by the engine": str(self.missed),
                "extra, found by the engine only": str(self.extra),
                f"mean {self.overlap} of those that both find": _figure(self.mean_iou),
                "mean change of their scores": _change(self.score_drift),
                "quality, 0 to 1 (overlaps and matches combined)": f"{self.quality:.3f}",
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
            "quality, 0 to 1 (1 minus the relative error)": f"{self.quality:.3f}",
        }

    @property
    def least(self) -> float:
        """Return the smaller one of `quality` and `same_top`."""
        return self.quality if self.same_top is None else min(self.quality, self.same_top)

    @property
    def images_text(self) -> str:
        """Return a text about the compared images."""
        if self.images_from == SHIPPED:
            return f"{self.images} {SHIPPED}"
        of = "" if self.images_from is None else f" of {self.images_from}"
        return f"{counted(self.images, 'image')}{of}"

    @property
    def _has_detections(self) -> bool:
        return bool(self.detections or self.extra)


Method = Literal["percentile", "minmax", "entropy", "mse"]
"""Method that computes the INT8 range of a tensor from its values."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The origin of an INT8 engine's ranges.

    Attributes:
        method: method that computed the ranges: "percentile", "minmax", "entropy" or "mse".
        images: number of calibration images.
        images_sha256: SHA-256 of the bytes of all image files in order.
        preprocess_sha256: SHA-256 of the preprocessing of the calibration images.
        layers: number of layers that compute in INT8.
        kept_float: names of the layers that could compute in INT8 but stay float.
        reused: True if the ranges come from an earlier build of the same model and images.
        gains: name of each block -> gain of agreement if only this block stays float, the largest
            gain first. Empty if the build did not search.
        remarks: texts about problems with the images, and advice.
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
        """Return a text about the layers in INT8, and the layers that stay float."""
        kept = self.kept_float
        if not kept:
            return f"{counted(self.layers, 'layer')} in INT8"
        more = f" and {len(kept) - _NAMES_SHOWN} more" if len(kept) > _NAMES_SHOWN else ""
        names = ", ".join(kept[:_NAMES_SHOWN]) + more
        return f"{counted(self.layers, 'layer')} in INT8, {len(kept)} kept in float: {names}"


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """The figures of a backend and precision that a build could choose.

    Attributes:
        backend: name of the backend.
        precision: precision of the engine.
        alone_ms: median time in milliseconds of a single call with all cores, from a decoded image
            to its result; None if it was not measured.
        images_per_s: median rate in images per second of parallel calls with one core each; None if
            it was not measured.
        quality: agreement with the source model, 0 to 1; None if it was not measured.
        accuracy: accuracy on labelled images; None if it was not measured.
        metric: name of the accuracy's metric; None if the accuracy was not measured.
        problem: reason why the candidate could not be chosen; None if it could be chosen.
        kept: True if the build chose this candidate.
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
    """Return the header and the rows of a table with a row for each candidate."""
    # If the accuracy was measured, show it in place of the agreement, because then the accuracy
    # decides.
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
    # "within noise" means that the median is better than the median of the kept engine, but that it
    # was not better in three of four rounds.
    return "within noise" if faster else "slower"


def left_out_text(candidates: Sequence[CandidateFigures]) -> str:
    """Return a text with one line for each reason why candidates were left out."""
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
