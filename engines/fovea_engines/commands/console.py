"""Formats cards, model files, ensembles and repositories as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill

from rich import box
from rich.table import Table
from rich.text import Text

from fovea_engines.commands.inspection import InspectedModel, ModelFile
from fovea_engines.detect.heads.registry import is_nameless
from fovea_engines.repository.accuracy import accuracy_table
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.composites import StageRow
from fovea_engines.repository.config_pbtxt import Ensemble
from fovea_engines.repository.figures import (
    NO_FIGURE,
    candidate_table,
    left_out_text,
)
from fovea_engines.repository.labels import set_of
from fovea_engines.repository.model_config_scheduling import EnsembleStep
from fovea_engines.session import TensorSpec

_LABELS_SHOWN = 8
# A name that is broken cannot be copied: the other columns give way to it, up to this length.
_NAME_WIDTH = 40
# Two lines a row, so that no word of a usual one is broken in 80 columns.
_COLUMNS = ("head\ninput", "precision\nbackend", "agreement\naccuracy")


def card_table(card: EngineCard, version: int, *, served: bool) -> Table:
    """An engine card, one property a line; a version of 0 is none."""
    of = f" version {version}, {'' if served else 'not '}served" if version else ""
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
    return _table(title, rows)


def model_table(model: ModelFile, title: str) -> Table:
    """An ONNX file, one property a line."""
    rows = _head_rows(model)
    if model.size is not None:
        rows.append(("size", model.size))
    if model.preprocess_text is not None:
        rows.append(("preprocess", model.preprocess_text))
    return _table(title, [*rows, ("opset", str(model.opset))])


def repository_table(entries: Iterable[InspectedModel]) -> Table:
    """Versions of a repository, one a row; below it, why some cannot be opened."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    table.add_column("model\nversion", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    failures = []
    for entry in entries:
        served = " served" if entry.served else ""
        cells = [f"{fill(entry.name, _NAME_WIDTH)}\n{entry.version}{served}"]
        if isinstance(entry.engine, EngineCard):
            cells += _cells(entry.engine)
        elif isinstance(entry.engine, Ensemble):
            models = dict.fromkeys(step.model_name for step in entry.engine.steps)
            cells += [f"ensemble of\n{', '.join(models)}"]
        elif isinstance(entry.engine, tuple):
            models = dict.fromkeys(stage["model"] for stage in entry.engine)
            cells += [f"made of\n{', '.join(models)}"]
        else:
            failures.append(f"{entry.name} {entry.version} cannot be opened: {entry.engine}")
        table.add_row(*map(Text, cells))
    if failures:
        table.caption = Text("\n".join(failures))
    return table


def ensemble_table(ensemble: Ensemble, version: int) -> Table:
    """An ensemble, one property a line."""
    rows: list[tuple[str, str | Table]] = [
        ("platform", "ensemble"),
        ("inputs", _tensors(ensemble.inputs)),
        ("outputs", _tensors(ensemble.outputs)),
        ("max batch", str(ensemble.max_batch)),
        ("steps", "\n".join(map(_step, ensemble.steps))),
    ]
    return _table(f"{ensemble.name} version {version}", rows)


def stage_table(stages: Iterable[StageRow], name: str) -> Table:
    """The stages of a model that is made of several, one a row."""
    title = Text(f"{name} is made of")
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for column in ("stage", "model", "sees", "gives"):
        table.add_column(column, overflow="fold")
    for stage in stages:
        table.add_row(*map(Text, stage.values()))
    return table


def _step(step: EnsembleStep) -> str:
    version = "" if step.version is None else f" {step.version}"
    taken = [f"{name} from {tensor}" for name, tensor in step.input_map.items()]
    given = [f"{tensor} from {name}" for name, tensor in step.output_map.items()]
    return f"{step.model_name}{version}: {', '.join(taken + given)}"


def _table(title: str, rows: Iterable[tuple[str, str | Table]]) -> Table:
    # Text, not markup: names and labels come from files, and "[/x]" in one is no instruction.
    table = Table(title=Text(title), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        table.add_row(key, Text(value) if isinstance(value, str) else value)
    return table


def _head_rows(model: EngineCard | ModelFile) -> list[tuple[str, str]]:
    head = model.family or "none: the model's tensors are served"
    if isinstance(model, ModelFile) and model.open:
        choices = " or ".join(f"--head {family}" for family in model.open)
        head = f"to be chosen: build with {choices}"
    return [
        ("head", head),
        ("why", model.reason),
        *([("DOUBTED", model.head_doubt)] if model.head_doubt else []),
        ("task", model.task),
        *([] if is_nameless(model.family) else [("labels", _labels(model))]),
        ("inputs", _tensors(model.inputs)),
        ("outputs", _tensors(model.outputs)),
    ]


def _labels(model: EngineCard | ModelFile) -> str:
    labels = model.labels
    if labels is None:
        if (usual := set_of(model.num_classes)) is not None:
            return f"none: build with --labels {usual}, if it was trained on those"
        return "none: build with --labels" if model.family else "none"
    if labels == tuple(map(str, range(len(labels)))):
        return f"0 to {len(labels) - 1}"
    more = f", ... ({len(labels)})" if len(labels) > _LABELS_SHOWN else ""
    return ", ".join(labels[:_LABELS_SHOWN]) + more


def _tensors(specs: tuple[TensorSpec, ...]) -> str:
    return "\n".join(f"{spec.name} {spec.dtype} {shape_text(spec)}" for spec in specs)


def shape_text(spec: TensorSpec) -> str:
    """Format a shape, with "?" for a dynamic dimension; empty for a scalar."""
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


def _cells(card: EngineCard) -> tuple[str, ...]:
    accuracy = card.accuracy.get(card.precision)
    return (
        f"{card.family or 'tensors only'}\n{' '.join(map(shape_text, card.inputs))}",
        f"{card.precision}\n{card.backend}",
        f"{_agreement(card)}\n{NO_FIGURE if accuracy is None else f'{accuracy.figure:.3f}'}",
    )


def _agreement(card: EngineCard) -> str:
    """In the fewest words."""
    found = card.agreement
    if found is None:
        return "not checked"
    if card.precision != "fp32":
        return f"{found.quality:.3f} of 1"
    return f"{found.box_px:.2g} px" if found.detections else f"{found.output_error:.2g}"
