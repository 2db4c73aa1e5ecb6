"""Formats a card as portable Markdown (CommonMark with GitHub's tables)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fovea_engines.build.plan import BuildPlan
from fovea_engines.evaluate.agreement.sensitivity import Sensitivity
from fovea_engines.plural import counted
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import WorstImage
from fovea_engines.repository.wording import (
    NO_FIGURE,
    accuracy_table,
    agreement_rows,
    agreement_text,
    backend_text,
    calibration_text,
    checked_text,
    images_text,
    preprocess_text,
)

_CLASSES_SHOWN = 10
# A smaller change of a class reads as zero.
_LEAST_CHANGE = 0.0005


def card_text(
    card: EngineCard,
    plan: BuildPlan,
    ranking: Sequence[Sensitivity],
    image: str | None,
) -> str:
    """Return the page, without sections for missing figures.

    Args:
        card: with all its figures.
        plan: the plan of the build.
        ranking: blocks ranked by the sensitivity search, largest gain first; may be empty.
        image: file name of the worst image, as `worst_image` draws it; None without one.
    """
    sections = [
        f"# {escape(card.name)}: {card.precision.upper()} on {card.backend}",
        _verdict(card),
        _origin(card, plan),
        _agreement(card, plan),
        _accuracy(card),
        _classes(card),
        _sensitivity(card, ranking),
        _worst(card.agreement.worst if card.agreement else (), image),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _verdict(card: EngineCard) -> str:
    if card.refused is not None:
        return f"**REFUSED**: {escape(card.refused)}. Nothing was published."
    said = ""
    if card.accuracy:
        said = f"mAP50-95 {card.accuracy[card.precision].map50_95:.3f}"
        if card.precision != "fp32":
            said += f", and {card.accuracy['fp32'].map50_95:.3f} in FP32"
    elif card.agreement is not None:
        said = agreement_text(card.agreement, card.precision)
    return f"**Published**: {said}."


def _origin(card: EngineCard, plan: BuildPlan) -> str:
    rows = [("source", f"{plan.source.name}, sha256 {card.onnx_sha256[:12]}")]
    if card.created is not None:
        seconds = sum(card.build_seconds.values())
        rows.append(("built", f"{card.created:%Y-%m-%d %H:%M} UTC in {seconds:.1f} s"))
    rows += [
        ("runtime", backend_text(card)),
        ("checked on", checked_text(card)),
        ("head", f"{card.family or 'not recognised'} ({card.reason})"),
        ("batch", f"1 to {card.max_batch}"),
    ]
    if card.preprocess is not None:
        rows.append(("images are", preprocess_text(card.preprocess)))
    if (calibration := calibration_text(card)) is not None:
        rows.append(("calibration", calibration))
    return "## What was built from what\n\n" + table(("", ""), rows)


def _agreement(card: EngineCard, plan: BuildPlan) -> str:
    if card.agreement is None:
        return ""
    columns = {card.precision.upper(): agreement_rows(card.agreement, card.precision)}
    if card.tensorrt is not None:
        columns["for TensorRT"] = agreement_rows(card.tensorrt, card.precision)
    labels = dict.fromkeys(label for column in columns.values() for label in column)
    rows = [[k, *(column.get(k, NO_FIGURE) for column in columns.values())] for k in labels]
    own = "" if plan.check_images is not None else ": give --images for figures on your own"
    return (
        "## Agreement with the source model\n\n"
        f"Measured without labels, on {escape(images_text(card.agreement))}{own}.\n\n"
        + table(("", *columns), rows)
    )


def _accuracy(card: EngineCard) -> str:
    if not card.accuracy:
        return ""
    images = counted(card.accuracy[card.precision].images, "labelled image")
    return f"## Accuracy on {images}\n\n" + table(*accuracy_table(card.accuracy))


def _classes(card: EngineCard) -> str:
    if card.precision == "fp32" or not card.accuracy:
        return ""
    before, after = card.accuracy["fp32"].per_class, card.accuracy[card.precision].per_class
    change = {name: after[name] - value for name, value in before.items()}
    lost = sorted(
        (name for name in change if change[name] <= -_LEAST_CHANGE), key=change.__getitem__
    )
    if not lost:
        return ""
    rows = [
        (name, f"{before[name]:.3f}", f"{after[name]:.3f}", f"{change[name]:+.3f}")
        for name in lost[:_CLASSES_SHOWN]
    ]
    header = ("class", "fp32", card.precision, "change")
    return "## Classes that lost most (mAP50-95)\n\n" + table(header, rows)


def _sensitivity(card: EngineCard, ranking: Sequence[Sensitivity]) -> str:
    if not ranking:
        return ""
    kept = set(card.calibration.kept_float) if card.calibration else set()
    rows = [
        (
            one.block,
            f"{one.gain:+.3f}",
            "float" if kept.issuperset(one.layers) else card.precision.upper(),
        )
        for one in ranking
    ]
    return (
        "## Blocks by what they cost\n\n"
        "Gain of agreement when this block alone stays in float, and what it was left in.\n\n"
        + table(("block", "gain", "left in"), rows)
    )


def _worst(worst: Sequence[WorstImage], image: str | None) -> str:
    if not worst:
        return ""
    header, said = ["image", "lost"], "Sorted by what is lost: 1 less the quality of each image."
    rows = [[one.name, f"{one.lost:.3f}"] for one in worst]
    if worst[0].missed is not None:
        header += ["missed", "extra", "quality"]
        said = (
            "Sorted by what is lost: half a detection for each that is missed or extra, and what "
            "the boxes that both find lack in overlap."
        )
        rows = [
            [*row, str(one.missed), str(one.extra), f"{one.quality:.3f}"]
            for row, one in zip(rows, worst, strict=True)
        ]
    text = f"## Images that differ most\n\n{said}\n\n" + table(header, rows)
    if image is None:
        return text
    return (
        f"{text}\n\nThe first of them: on the left what the source model finds, on the right what "
        "the engine finds. What both find is grey; what only one finds is in colour, framed in "
        f"red.\n\n![The worst image with both sets of boxes]({image})"
    )


# "$" begins a formula on GitHub, "~" strikes through, "&" begins an entity.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#!])")


def escape(text: str) -> str:
    """Escape untrusted text so that it stays on one line and contains no markup."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", " ".join(printable.split()))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; every cell is escaped."""
    lines = [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
