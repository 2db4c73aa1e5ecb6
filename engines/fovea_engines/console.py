"""How the commands of this package talk to people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_engines.backends.base import TensorSpec
from fovea_engines.card import EngineCard

if TYPE_CHECKING:
    from rich.table import Table

    from fovea_engines.inspection import Entry, ModelFile

_LABELS_SHOWN = 8


def card_table(card: EngineCard, version: int) -> Table:
    """An engine card, one property a line."""
    title = f"{card.name} version {version}" if version else card.name
    rows = [
        *_head_rows(card),
        ("backend", f"{card.backend} {card.backend_version}, {card.precision}"),
        ("max batch", str(card.max_batch)),
        ("agreement", _agreement(card)),
        ("checked on", card.device if card.agreement else "-"),
    ]
    if card.created is not None:
        seconds = sum(card.build_seconds.values())
        rows.append(("built", f"{card.created:%Y-%m-%d %H:%M} UTC in {seconds:.1f} s"))
    return _table(title, rows)


def model_table(model: ModelFile, title: str) -> Table:
    """An ONNX file, one property a line."""
    return _table(title, [*_head_rows(model), ("opset", str(model.opset))])


def repository_table(entries: Iterable[Entry]) -> Table:
    """Versions of a repository, one a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("model", "version", "head", "input", "backend", "agreement"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        card = entry.engine
        cells: tuple[str, ...] = ("cannot be opened", "", "", str(card))
        if isinstance(card, EngineCard):
            shapes = " ".join(_shape(spec) for spec in card.inputs)
            found = card.agreement
            within = "not checked" if found is None else f"{found.output_error:.1g}"
            if found is not None and found.detections:
                within = f"{found.box_px:.1g} px, {found.score:.1g}"
            cells = (card.family or "tensors only", shapes, card.backend, within)
        table.add_row(*map(Text, (entry.name, str(entry.version), *cells)))
    return table


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    # Text, not markup: names and labels come from files, and "[/x]" in one is no instruction.
    table = Table(title=Text(title), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        table.add_row(key, Text(value))
    return table


def _head_rows(model: EngineCard | ModelFile) -> list[tuple[str, str]]:
    return [
        (
            "head",
            model.family or "not recognised: letterboxes as RGB 0 to 1, serves tensors",
        ),
        ("why", model.reason),
        ("task", model.task),
        ("labels", _labels(model.labels)),
        ("inputs", _tensors(model.inputs)),
        ("outputs", _tensors(model.outputs)),
    ]


def _labels(labels: tuple[str, ...] | None) -> str:
    if labels is None:
        return "none: give them with --labels"
    more = f", ... ({len(labels)})" if len(labels) > _LABELS_SHOWN else ""
    return ", ".join(labels[:_LABELS_SHOWN]) + more


def _tensors(specs: tuple[TensorSpec, ...]) -> str:
    return "\n".join(f"{spec.name} {spec.dtype} {_shape(spec)}" for spec in specs)


def _shape(spec: TensorSpec) -> str:
    return "x".join("?" if length == -1 else str(length) for length in spec.shape)


def _agreement(card: EngineCard) -> str:
    found = card.agreement
    if found is None:
        return "not checked: not built by Fovea"
    if not found.detections:
        return f"outputs within {found.output_error:.1g} on {found.images} images"
    return (
        f"{found.detections} boxes on {found.images} images: "
        f"{found.box_px:.1g} px, score {found.score:.1g}"
    )
