"""Edits an ONNX file in checked steps, and shows what changed, for `fovea edit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf, lcm
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from onnx.helper import set_model_props
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fovea_engines.edit.check import check
from fovea_engines.edit.edited import Edited, copied, first_input
from fovea_engines.edit.run import Feed, sample
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.repository.files import write_file
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import BuildError, InvalidOption
from fovea_server.cli.card_table import shape_text

Edit: TypeAlias = Callable[[onnx.ModelProto], Edited]


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a model that users see; `head` is None where it serves tensors only."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int
    head: str | None
    metadata: dict[str, str]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Facts:
        """Collect the facts of a model."""
        inputs, outputs, metadata = graph_inputs(model), graph_outputs(model), metadata_of(model)
        head, _ = recognise_graph(model)
        return cls(inputs, outputs, len(model.graph.node), head.family, metadata)


@dataclass(frozen=True, slots=True)
class Step:
    """An edit that was made.

    Attributes:
        difference: the largest of an output; None where the model before takes no such input.
        expected: the edit is to change the outputs, so no difference is refused.
    """

    what: str
    difference: float | None
    expected: bool


@dataclass(frozen=True, slots=True)
class EditReport:
    """A file before and after its edits."""

    source: Path
    out: Path
    before: Facts
    after: Facts
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types; an infinite difference, of other shapes, is null."""
        steps = [
            asdict(step) | {"difference": None if step.difference == inf else step.difference}
            for step in self.steps
        ]
        return asdict(self) | {"source": str(self.source), "out": str(self.out), "steps": steps}


def edit_model(source: Path, out: Path, edits: Sequence[Edit], batch: int | None) -> EditReport:
    """Apply edits to a file one after another, check each, and write the result.

    Args:
        source: is never written to.
        out: is written when every check has passed.
        edits: in their order.
        batch: rows of a call that the edited model must be right with; None is the model's own.

    Raises:
        InvalidOption: `out` is the source, an edit does not suit the model, or the names that it
            writes are not those of the classes.
        BuildError: the source is no model, an edit fails, or `out` cannot be written.
    """
    if out.resolve() == source.resolve():
        raise InvalidOption(f"--out {out} is the model itself: name another file")
    original = model = load(source).proto
    own = max(1, first_input(model).shape[0])
    feed: Feed = sample(model, own if batch is None else lcm(own, batch))
    steps = []
    for edit in edits:
        edited = edit(model)
        feed, difference = check(model, edited, feed)
        steps.append(Step(edited.what, difference, not edited.keeps))
        model = edited.model
    if metadata_of(model).get("names") not in (None, metadata_of(original).get("names")):
        _check_names(model)
    try:
        write_file(out, model.SerializeToString())
    except OSError as error:
        raise BuildError(
            f"{out} cannot be written ({error.strerror}): name a file in a folder of yours"
        ) from error
    return EditReport(source, out, Facts.of(original), Facts.of(model), tuple(steps))


def _check_names(model: onnx.ModelProto) -> None:
    """Refuse, as InvalidOption, class names that cannot be read or are not one for each class."""
    metadata = metadata_of(model)
    names = labels_from_metadata(metadata, None)
    if names is None:
        raise InvalidOption(
            "--meta names is no list of class names: give --labels FILE, or write it as in "
            """--meta 'names=["cat", "dog"]'"""
        )
    unnamed = copied(model)
    set_model_props(unnamed, {key: value for key, value in metadata.items() if key != "names"})
    (before, _), (after, _) = recognise_graph(unnamed), recognise_graph(model)
    if before.family is not None and after.family is None and not after.open:
        raise InvalidOption(
            f"{len(names)} labels for a model of {before.num_classes} classes: give one for each, "
            "in the order of the training"
        )


def report_tables(report: EditReport) -> Group:
    """Show what changed: the model before and after, and every edit with its difference."""
    facts = Table("", box=SIMPLE_HEAD)
    for file in (report.source, report.out):
        facts.add_column(Text(file.name), overflow="fold")
    for title, *cells in _rows(report.before, report.after):
        facts.add_row(title, *map(Text, cells))
    steps = Table("edit", "largest difference", box=SIMPLE_HEAD)
    for step in report.steps:
        steps.add_row(Text(step.what), _difference(step))
    return Group(facts, steps)


def _rows(*models: Facts) -> Iterator[tuple[str, ...]]:
    yield "inputs", *(_tensors(each.inputs) for each in models)
    yield "outputs", *(_tensors(each.outputs) for each in models)
    yield "nodes", *(str(each.nodes) for each in models)
    yield "head", *(each.head or "not recognised" for each in models)
    yield "metadata", *(", ".join(each.metadata) or "none" for each in models)


def _tensors(specs: Sequence[TensorSpec]) -> str:
    return "\n".join(f"{spec.name} {spec.dtype} {shape_text(spec)}" for spec in specs)


def _difference(step: Step) -> str:
    if step.difference is None:
        return "not compared: another size"
    return f"{step.difference:.2g}{', as is to be expected' * step.expected}"
