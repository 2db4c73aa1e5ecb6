"""What a card says, in words: for the tables of commands and for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from fovea_engines.plural import counted
from fovea_engines.repository.card import EngineCard, Precision
from fovea_engines.repository.figures import Accuracy, Agreement, Calibration
from fovea_engines.repository.options import target
from fovea_preprocess.spec import PreprocessSpec

SHIPPED = "photographs that ship with Fovea"

NO_FIGURE = "-"
_NAMES_SHOWN = 8


def backend_text(card: EngineCard) -> str:
    """What runs an engine, and of a TensorRT engine what it was built for."""
    text = f"{card.backend} {card.backend_version}"
    if card.builder is None:
        return text
    profiles = " and ".join(str(profile) for profile in card.builder.profiles)
    return f"{text}, for {card.gpu or target(card.builder)}, batches (least, best, most) {profiles}"


def checked_text(card: EngineCard) -> str:
    """Where an engine's figures were measured."""
    if card.agreement is None:
        return NO_FIGURE
    if card.judge is None:
        return card.device
    return f"{card.device}, by {card.judge} in the engine's place: it has not run yet"


def calibration_text(card: EngineCard) -> str | None:
    """Where the ranges of an INT8 engine come from; None for other engines."""
    found = card.calibration
    bits = "" if card.weight_bits == 8 else "; weights in 7 bits, for CPUs without VNNI"
    if found is None:
        return f"scales of the model's exporter{bits}" if card.precision == "int8" else None
    reused = ", measured for an earlier build" if found.reused else ""
    return f"{found.method} of {counted(found.images, 'image')}{reused}; {_layers(found)}{bits}"


def agreement_text(found: Agreement, precision: Precision) -> str:
    """How an engine agrees with its source, in one line."""
    images = images_text(found)
    if precision == "fp32" and found.detections:
        return (
            f"{counted(found.detections, 'box')} before suppression, on {images}, within "
            f"{found.box_px:.2g} px (weighted by score), their scores within {found.score:.2g}"
        )
    if _has_detections(found):
        return (
            f"{counted(found.detections, 'detection')} on {images}: {found.missed} missed, "
            f"{found.extra} extra, mean IoU {_figure(found.mean_iou)}, scores "
            f"{_change(found.score_drift)}; quality {found.quality:.3f} of 1"
        )
    same_top = "" if found.same_top is None else f", first class the same on {found.same_top:.1%}"
    quality = "" if precision == "fp32" else f"; quality {found.quality:.3f} of 1"
    return f"outputs within {found.output_error:.2g} on {images}{same_top}{quality}"


def images_text(found: Agreement) -> str:
    """The images that an engine was compared on."""
    if found.images_from == SHIPPED:
        return f"{found.images} {SHIPPED}"
    of = "" if found.images_from is None else f" of {found.images_from}"
    return f"{counted(found.images, 'image')}{of}"


def agreement_rows(found: Agreement, precision: Precision) -> dict[str, str]:
    """How an engine agrees with its source, each figure by what it is."""
    rows = {"images": str(found.images)}
    if precision == "fp32" and found.detections:
        return rows | {
            "boxes compared, before suppression": str(found.detections),
            "farthest corner of a box, weighted by score": f"{found.box_px:.2g} px",
            "largest difference of a score": f"{found.score:.2g}",
        }
    if _has_detections(found):
        return rows | {
            "detections of the source model": str(found.detections),
            "missed by the engine": str(found.missed),
            "extra, found by the engine only": str(found.extra),
            "mean IoU of those that both find": _figure(found.mean_iou),
            "mean change of their scores": _change(found.score_drift),
            "quality, 0 to 1 (overlap and findings in one)": f"{found.quality:.3f}",
        }
    if found.same_top is not None:
        rows["first class the same"] = f"{found.same_top:.1%}"
    return rows | {
        "largest difference of an output, over its largest value": f"{found.output_error:.2g}",
        "quality, 0 to 1 (1 less the relative error)": f"{found.quality:.3f}",
    }


def accuracy_table(accuracy: Mapping[str, Accuracy]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of average precisions: a column for each precision, others last."""
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


def preprocess_text(spec: PreprocessSpec) -> str:
    """The preprocessing that makes an input row of an image."""
    size = f"{spec.height}x{spec.width}"
    if spec.fit == "stretch":
        shape = f"stretched to {size} (height x width)"
    elif spec.fit == "center-crop":
        short = round(spec.crop_ratio * min(spec.height, spec.width))
        shape = f"short side resized to {short}, the middle {size} (height x width) cut out"
    else:
        place = "centred" if spec.anchor == "center" else "at the top left"
        shape = f"letterboxed to {size} (height x width), {place}, padded with grey {spec.pad}"
        if spec.max_scale is not None:
            shape += f", enlarged {spec.max_scale:g} times at most"
    values = f"{spec.channels}, 0 to {255 * spec.scale:.4g}"
    if any(spec.mean) or any(one != 1 for one in spec.std):
        values += f", less {_channels(spec.mean)}, over {_channels(spec.std)}"
    return f"{shape}; {values}, {spec.layout} {spec.dtype}"


def _layers(found: Calibration) -> str:
    kept = found.kept_float
    if not kept:
        return f"{counted(found.layers, 'layer')} in INT8"
    more = f" and {len(kept) - _NAMES_SHOWN} more" if len(kept) > _NAMES_SHOWN else ""
    names = ", ".join(kept[:_NAMES_SHOWN]) + more
    return f"{counted(found.layers, 'layer')} in INT8, {len(kept)} kept in float: {names}"


def _has_detections(found: Agreement) -> bool:
    return bool(found.detections or found.extra)


def _figure(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:.3f}"


def _change(value: float | None) -> str:
    return NO_FIGURE if value is None else f"{value:+.3f}"


def _channels(values: tuple[float, float, float]) -> str:
    return " ".join(f"{value:g}" for value in values)
