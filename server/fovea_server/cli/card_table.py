"""Formats engine cards, and the agreement of a pipeline's stages, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from fovea_engines.heads.registry import is_nameless
from fovea_engines.repository.accuracy import accuracy_table
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import (
    NO_FIGURE,
    StageAgreement,
    candidate_table,
    left_out_text,
)
from fovea_engines.repository.labels import set_of
from fovea_engines.repository.repository import Standing
from fovea_engines.session import TensorSpec

_LABELS_SHOWN = 8


def card_table(card: EngineCard, version: int, standing: Standing) -> Table:
    """Return a table of an engine card, with one property per row.

    If `version` is 0, the card does not belong to a version, and the title names no version.
    """
    of = f" version {version}, {standing}" if version else ""
    title = f"{card.name}{of}"
    rows: list[tuple[str, str | Table]] = [
        *_head_rows(card),
        ("preprocess", card.preprocess_text),
        ("backend", card.backend_text),
        ("precision", card.precision),
        ("max batch", str(card.max_batch)),
        *_figure_rows(card),
        *([("REFUSED", card.refused)] if card.refused else []),
        ("checked on", card.checked_text),
    ]
    if card.created is not None:
        seconds = sum(card.build_seconds.values())
        rows.append(("built", f"{card.created:%Y-%m-%d %H:%M} UTC in {seconds:.1f} s"))
    return property_table(title, rows)


def agreement_table(stages: Iterable[StageAgreement]) -> Table:
    """Return a table of the agreement of stages with their reference, one stage per row."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=(
            "objects: number in the reference; later stages count only objects found in both runs"
        ),
        caption_justify="left",
    )
    for column in ("stage", "engine", "objects", "agreement", "differs most"):
        table.add_column(column, overflow="fold")
    for each in stages:
        agreement = f"{each.agreement:.3f}" if each.objects or not each.same else NO_FIGURE
        row = (each.stage, each.engine, str(each.objects), agreement, each.differs)
        table.add_row(*map(Text, row))
    return table


def property_table(title: str, rows: Iterable[tuple[str, str | Table]]) -> Table:
    """Return a table with one property per row."""
    # Cells are `Text`, not markup, because names and labels come from files and may contain "[/x]".
    table = Table(title=Text(title), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        table.add_row(key, Text(value) if isinstance(value, str) else value)
    return table


def _head_rows(card: EngineCard) -> list[tuple[str, str]]:
    return [
        ("head", card.family or "none: the model's tensors are served"),
        ("why", card.reason),
        *([("DOUBTED", card.head_doubt)] if card.head_doubt else []),
        ("task", card.task),
        *label_rows(card.labels, card.family, card.num_classes),
        ("inputs", tensors_text(card.inputs)),
        ("outputs", tensors_text(card.outputs)),
    ]


def label_rows(
    labels: tuple[str, ...] | None, family: str | None, count: int | None
) -> list[tuple[str, str]]:
    """Return a row with the first class names; if they are unknown, return a row with advice."""
    return [] if is_nameless(family) else [("labels", _labels(labels, family, count))]


def _labels(labels: tuple[str, ...] | None, family: str | None, count: int | None) -> str:
    if labels is None:
        if (usual := set_of(count)) is not None:
            return f"none: if the model was trained on {usual}, build with --labels {usual}"
        return "none: build with --labels" if family else "none"
    if labels == tuple(map(str, range(len(labels)))):
        return f"0 to {len(labels) - 1}"
    more = f", ... ({len(labels)})" if len(labels) > _LABELS_SHOWN else ""
    return ", ".join(labels[:_LABELS_SHOWN]) + more


def tensors_text(specs: tuple[TensorSpec, ...]) -> str:
    """List tensors, one per line."""
    return "\n".join(f"{spec.name} {spec.dtype} {shape_text(spec)}" for spec in specs)


def shape_text(spec: TensorSpec) -> str:
    """Format a shape, with "?" for a dynamic dimension; return an empty text for a scalar."""
    return "x".join("?" if length == -1 else str(length) for length in spec.shape)


def _figure_rows(card: EngineCard) -> Iterator[tuple[str, str | Table]]:
    if (calibration := card.calibration_text) is not None:
        yield "calibration", calibration
    if card.agreement is None:
        why = "unproven" if card.unproven else "not built by Fovea"
        yield "agreement", f"not checked: {why}"
    else:
        yield "agreement", card.agreement.text(card.precision)
    if card.sizes:
        lines = (f"{size}: {found.text(card.precision)}" for size, found in card.sizes.items())
        yield "by size", "\n".join(lines)
    if card.tensorrt is not None:
        yield "for TensorRT", card.tensorrt.text(card.precision)
    if card.accuracy:
        yield "accuracy", _figure_table(*accuracy_table(card.accuracy))
    if card.goal is not None:
        yield "candidates", _figure_table(*candidate_table(card.candidates, card.goal))
        if text := left_out_text(card.candidates):
            yield "left out", text


def _figure_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in header:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
