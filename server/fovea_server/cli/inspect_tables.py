"""Formats model files, ensembles, stages and repositories as tables."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

from rich import box
from rich.table import Table
from rich.text import Text

from fovea_engines.inspect.inspection import ModelFile
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.config_pbtxt import Ensemble
from fovea_engines.repository.figures import NO_FIGURE
from fovea_engines.repository.model_config_scheduling import EnsembleStep
from fovea_server.cli.card_table import (
    label_rows,
    property_table,
    shape_text,
    tensors_text,
)
from fovea_server.cli.inspect_models import InspectedModel
from fovea_server.pipelines.recipe import StageRow

# Largest width of the column with names. Users copy the names, so other columns are wrapped first.
_NAME_WIDTH = 40
# Titles of the columns. Each title has two lines, so that common words fit 80 columns without being
# broken.
_COLUMNS = ("head\ninput", "precision\nbackend", "agreement\naccuracy")


def model_table(model: ModelFile, title: str) -> Table:
    """Return a table of an ONNX file, one property per row."""
    head = model.family or "none: the model's tensors are served"
    if model.open:
        choices = " or ".join(f"--head {family}" for family in model.open)
        head = f"undecided: build with {choices}"
    rows: list[tuple[str, str | Table]] = [
        ("head", head),
        ("why", model.reason),
        *([("DOUBTED", model.head_doubt)] if model.head_doubt else []),
        ("task", model.task),
        *label_rows(model.labels, model.family, model.num_classes),
        ("inputs", tensors_text(model.inputs)),
        ("outputs", tensors_text(model.outputs)),
    ]
    if model.size is not None:
        rows.append(("size", model.size))
    if model.preprocess_text is not None:
        rows.append(("preprocess", model.preprocess_text))
    return property_table(title, [*rows, ("opset", str(model.opset))])


def repository_table(entries: Iterable[InspectedModel]) -> Table:
    """Return a table of versions, one per row.

    The errors of versions that cannot be read are below the table.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    table.add_column("model\nversion", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    failures = []
    for entry in entries:
        standing = "" if entry.standing == "not served" else f" {entry.standing}"
        cells = [f"{fill(entry.name, _NAME_WIDTH)}\n{entry.version}{standing}"]
        if isinstance(entry.engine, EngineCard):
            cells += _cells(entry.engine)
        elif isinstance(entry.engine, Ensemble):
            models = dict.fromkeys(step.model_name for step in entry.engine.steps)
            cells += [f"ensemble of\n{', '.join(models)}"]
        elif isinstance(entry.engine, tuple):
            models = dict.fromkeys(stage["model"] for stage in entry.engine)
            cells += [f"pipeline of\n{', '.join(models)}"]
        else:
            failures.append(f"{entry.name} {entry.version} cannot be opened: {entry.engine}")
        table.add_row(*map(Text, cells))
    if failures:
        table.caption = Text("\n".join(failures))
    return table


def ensemble_table(ensemble: Ensemble, version: int) -> Table:
    """Return a table of an ensemble, one property per row."""
    rows: list[tuple[str, str | Table]] = [
        ("platform", "ensemble"),
        ("inputs", tensors_text(ensemble.inputs)),
        ("outputs", tensors_text(ensemble.outputs)),
        ("max batch", str(ensemble.max_batch)),
        ("steps", "\n".join(map(_step, ensemble.steps))),
    ]
    return property_table(f"{ensemble.name} version {version}", rows)


def stage_table(stages: Iterable[StageRow], name: str, reference: str) -> Table:
    """Return a table of a pipeline's stages, one per row; the reference is below the table."""
    title = Text(f"stages of {name}")
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for column in ("stage", "model", "sees", "gives"):
        table.add_column(column, overflow="fold")
    for stage in stages:
        table.add_row(*map(Text, stage.values()))
    if reference:
        table.caption, table.caption_justify = Text(f"reference: {reference}"), "left"
    return table


def _step(step: EnsembleStep) -> str:
    version = "" if step.version is None else f" {step.version}"
    taken = [f"{name} from {tensor}" for name, tensor in step.input_map.items()]
    given = [f"{tensor} from {name}" for name, tensor in step.output_map.items()]
    return f"{step.model_name}{version}: {', '.join(taken + given)}"


def _cells(card: EngineCard) -> tuple[str, ...]:
    accuracy = card.accuracy.get(card.precision)
    return (
        f"{card.family or 'tensors only'}\n{' '.join(map(shape_text, card.inputs))}",
        f"{card.precision}\n{card.backend}",
        f"{_agreement(card)}\n{NO_FIGURE if accuracy is None else f'{accuracy.figure:.3f}'}",
    )


def _agreement(card: EngineCard) -> str:
    """Return the agreement of an engine with its source model, in a few characters."""
    found = card.agreement
    if found is None:
        return "not checked"
    if card.precision != "fp32":
        return f"{found.quality:.3f} of 1"
    return f"{found.box_px:.2g} px" if found.detections else f"{found.output_error:.2g}"
