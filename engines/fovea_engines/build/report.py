"""Writes the report of a build: card.md, and the image worst.jpg if detections differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from fovea_engines.build.assemble import reference
from fovea_engines.build.int8 import Sensitivity
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.drawing.drawing import add_caption, draw, encode
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, match
from fovea_engines.evaluation.samples import Pixels, sample_image
from fovea_engines.heads.base import Detector
from fovea_engines.repository.accuracy import accuracy_table
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import (
    NO_FIGURE,
    WorstImage,
    candidate_table,
    left_out_text,
)
from fovea_engines.repository.files import write_file
from fovea_engines.repository.repository import REPORT_FILE
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.text import counted

IMAGE_FILE: Final = "worst.jpg"

_CLASSES_SHOWN = 10
# Smallest change of a class's accuracy that the report lists. A smaller change would be shown as
# zero.
_MIN_CHANGE = 0.0005

# Length in pixels of the longer side of each of the two images in worst.jpg.
_SIDE = 960
_FRAME, _RED = 9, (235, 30, 40)


def write_report(
    folder: Path,
    card: EngineCard,
    plan: BuildPlan,
    prepared: PreparedModel,
    engine: Engine,
    ranking: Sequence[Sensitivity],
    names: Sequence[str] | None = None,
) -> None:
    """Write the files of a report into a directory. A rejected build also has a report.

    Args:
        folder: directory for the files.
        card: card with all figures.
        plan: options of the build.
        prepared: prepared source model.
        engine: the built engine.
        ranking: result of the search for blocks to keep in float; empty if there was no search.
        names: class names for the image, if the model has no class names.
    """
    worst = card.agreement.worst if card.agreement else ()
    image = worst_image(plan, prepared, engine, worst[0].name, names) if worst else None
    if image is not None:
        write_file(folder / IMAGE_FILE, encode(image, "image/jpeg"))
    text = _card_text(card, plan, ranking, None if image is None else IMAGE_FILE)
    write_file(folder / REPORT_FILE, text.encode())


def worst_image(
    plan: BuildPlan,
    prepared: PreparedModel,
    engine: Engine,
    name: str,
    names: Sequence[str] | None = None,
) -> Pixels | None:
    """Draw the detections of the source model and of the engine on two copies of an image.

    The copies are side by side.

    Detections that both models have in common are grey, like the image. Detections of only one
    model are coloured and framed in red. Detections are paired as for the agreement figures. `name`
    is the file name of the image. `names` are class names for a model that has none.

    Returns:
        RGB pixels, uint8 [height, width, 3]. If the engine is not a detector, None.
    """
    if not isinstance(engine.head, Detector):
        return None
    pixels = sample_image(plan.check_images, name)
    options = PredictOptions(conf=CONF - MARGIN)
    have = engine.detect(pixels, options)
    with reference(plan, prepared, prepared.graph, "fp32") as source:
        want = source.detect(pixels, options)
    found = match(want, have, CONF, MARGIN)
    vocabulary = Vocabulary(engine.labels or tuple(names or ()), engine.card.skeleton)
    precision = engine.card.precision.upper()
    panes = []
    for one, agreed, title, only in (
        (want, found.want, "source model", f"missed by {precision}"),
        (have, found.have, f"{precision} on {engine.card.backend}", "extra"),
    ):
        odd = np.setdiff1d(np.flatnonzero(one.scores >= CONF), agreed)
        canvas = _draw(pixels, one.take(np.sort(agreed)), one.take(odd), vocabulary)
        caption = f"{title}: {len(agreed) + len(odd)} found, {len(odd) or 'none'} {only}"
        panes.append(add_caption(canvas, caption))
    return np.hstack(panes)


def _draw(
    pixels: Pixels,
    agreed: Detections,
    odd: Detections,
    vocabulary: Vocabulary,
) -> Pixels:
    """Draw an image at the report's size.

    Detections in `agreed` are drawn in grey, and detections in `odd` are drawn in colour.
    """
    height, width = pixels.shape[:2]
    factor = _SIDE / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    smooth = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    image = np.asarray(cv2.resize(pixels, size, interpolation=smooth), np.uint8)
    to_image = LetterboxMap(*size, width, height, width, height, 0, 0)

    same = draw(agreed.to_source(to_image), image, vocabulary)
    canvas = np.repeat(cv2.cvtColor(same, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    odd = odd.to_source(to_image)
    for x1, y1, x2, y2 in odd.boxes.round().astype(int).tolist():
        cv2.rectangle(canvas, (x1, y1), (x2, y2), _RED, _FRAME)
    return draw(odd, canvas.astype(np.uint8), vocabulary)


def _card_text(
    card: EngineCard, plan: BuildPlan, ranking: Sequence[Sensitivity], image: str | None
) -> str:
    """Return the report as Markdown: CommonMark with GitHub's tables.

    The report omits sections without figures.
    """
    sections = [
        f"# {escape(card.name)}: {card.precision.upper()} on {card.backend}",
        _verdict(card),
        _origin(card, plan),
        _candidates(card),
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
    verdict = ""
    if card.accuracy:
        found = card.accuracy[card.precision]
        verdict = f"{found.metric} {found.figure:.3f}"
        if card.precision != "fp32":
            verdict += f", and {card.accuracy['fp32'].figure:.3f} in FP32"
    elif card.agreement is not None:
        verdict = card.agreement.text(card.precision)
    elif card.unproven:
        operators = escape(", ".join(card.unproven))
        verdict = f"unproven. Only a plugin of TensorRT computes {operators}: so it was not checked"
    return f"**Published**: {verdict}."


def _origin(card: EngineCard, plan: BuildPlan) -> str:
    rows = [("source", f"{plan.source.name}, sha256 {card.onnx_sha256[:12]}")]
    if card.created is not None:
        seconds = sum(card.build_seconds.values())
        rows.append(("built", f"{card.created:%Y-%m-%d %H:%M} UTC in {seconds:.1f} s"))
    rows += [
        ("runtime", card.backend_text),
        ("checked on", card.checked_text),
        ("head", f"{card.family or 'not recognised'} ({card.reason})"),
        ("batch size", str(card.max_batch) if card.max_batch < 2 else f"1 to {card.max_batch}"),
    ]
    if card.preprocess is not None:
        text, *origin = card.preprocess_text.splitlines()
        rows += [("preprocessing", text), *(("chosen", line) for line in origin)]
    if (calibration := card.calibration_text) is not None:
        text, *remarks = calibration.splitlines()
        rows += [("calibration", text), *(("calibration images", remark) for remark in remarks)]
    return "## Source and build\n\n" + table(("", ""), rows)


def _candidates(card: EngineCard) -> str:
    if card.goal is None:
        return ""
    return (
        f"## Chosen engine, by {card.goal}\n\nMilliseconds of a single call with all cores, and "
        f"images/s of parallel calls with a core each, on {escape(card.device)}.\n\n"
        + table(*candidate_table(card.candidates, card.goal))
        + "".join(f"\n\n{escape(line)}" for line in left_out_text(card.candidates).splitlines())
    )


def _agreement(card: EngineCard, plan: BuildPlan) -> str:
    if card.agreement is None:
        return ""
    columns = {card.precision.upper(): card.agreement.rows(card.precision)}
    columns |= {size: found.rows(card.precision) for size, found in card.sizes.items()}
    if card.tensorrt is not None:
        columns["for TensorRT"] = card.tensorrt.rows(card.precision)
    labels = dict.fromkeys(label for column in columns.values() for label in column)
    rows = [[k, *(column.get(k, NO_FIGURE) for column in columns.values())] for k in labels]
    own = "" if plan.check_images is not None else ": give --images for figures on your own"
    return (
        "## Agreement with the source model\n\n"
        f"Measured without labels, on {escape(card.agreement.images_text)}{own}.\n\n"
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
    lost = sorted((name for name in change if change[name] <= -_MIN_CHANGE), key=change.__getitem__)
    if not lost:
        return ""
    rows = [
        (name, f"{before[name]:.3f}", f"{after[name]:.3f}", f"{change[name]:+.3f}")
        for name in lost[:_CLASSES_SHOWN]
    ]
    header = ("class", "fp32", card.precision, "change")
    metric = card.accuracy[card.precision].metric
    return f"## Classes that lost most ({metric})\n\n" + table(header, rows)


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
        "## Blocks by accuracy cost\n\nGain of agreement if only this block stays float, and its "
        "final precision.\n\n" + table(("block", "gain", "left in"), rows)
    )


def _worst(worst: Sequence[WorstImage], image: str | None) -> str:
    if not worst:
        return ""
    header, explanation = (
        ["image", "lost"],
        "Sorted by loss: 1 minus the quality of each image.",
    )
    rows = [[one.name, f"{one.lost:.3f}"] for one in worst]
    if worst[0].missed is not None:
        header += ["missed", "extra", "quality"]
        explanation = (
            "Sorted by loss: half a detection for each missed or extra one, and 1 minus the "
            "overlap for each shared one."
        )
        rows = [
            [*row, str(one.missed), str(one.extra), f"{one.quality:.3f}"]
            for row, one in zip(rows, worst, strict=True)
        ]
    text = f"## Images that differ most\n\n{explanation}\n\n" + table(header, rows)
    if image is None:
        return text
    return (
        f"{text}\n\nThe first image: on the left the source model's detections, on the right the "
        "engine's. Shared detections are grey, the others coloured and framed in red.\n\n![The "
        f"worst image with both sets of boxes]({image})"
    )


# Characters with a meaning in GitHub's Markdown. For example, "$" starts a formula, "~" strikes
# text through, and "&" starts an HTML entity.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#!])")


def escape(text: str) -> str:
    """Escape untrusted text for Markdown: the result is one line without any markup."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", " ".join(printable.split()))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. All cells are escaped."""
    lines = [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
