"""`fovea edit`: changes an ONNX file, and checks each change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, lcm
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import onnx
import typer
from onnx.helper import set_model_props
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fovea_engines.edit.check import check
from fovea_engines.edit.cut import cut
from fovea_engines.edit.edited import Edited, copy_model, first_input
from fovea_engines.edit.input_shape import set_batch, set_size
from fovea_engines.edit.names import rename as rename_tensors
from fovea_engines.edit.names import replace_operators, strip_metadata, write_metadata
from fovea_engines.edit.normalisation import Normalisation, add_normalisation, drop_normalisation
from fovea_engines.edit.run import Feed, sample
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.repository.files import write_file
from fovea_engines.repository.labels import LABEL_SETS, find_labels
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import BuildError, InvalidOption
from fovea_server.cli.card_table import shape_text
from fovea_server.cli.options import AsJson, ModelArgument, check_options, parse_size

Edit: TypeAlias = Callable[[onnx.ModelProto], Edited]

_cut_option = partial(typer.Option, rich_help_panel="Cut")
_input_option = partial(typer.Option, rich_help_panel="Input")
_names_option = partial(typer.Option, rich_help_panel="Names and operators")
_ANY = "dynamic"
_SEVERAL = 2  # batch size for checking a model whose batch size is dynamic
# Width in columns of the table if stdout is not a terminal.
_WIDE = 140


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a model that users see.

    `head` is None if no head fits, so that the model would serve tensors only.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int
    head: str | None
    metadata: dict[str, str]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Facts:
        """Return the properties of a model."""
        inputs, outputs, metadata = graph_inputs(model), graph_outputs(model), metadata_of(model)
        head, _ = recognise_graph(model)
        return cls(inputs, outputs, len(model.graph.node), head.family, metadata)


@dataclass(frozen=True, slots=True)
class Step:
    """An edit that was made.

    Attributes:
        what: description of the edit.
        difference: largest difference between outputs before and after the edit; None if the model
            before the edit cannot take the same input.
        expected: True if the edit is intended to change the outputs, so that any difference is
            accepted.
    """

    what: str
    difference: float | None
    expected: bool


@dataclass(frozen=True, slots=True)
class EditReport:
    """The properties of a model before and after its edits, and the edits."""

    source: Path
    out: Path
    before: Facts
    after: Facts
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON types.

        If outputs have different shapes, their difference is infinite, and null in the report.
        """
        steps = [
            asdict(step) | {"difference": None if step.difference == inf else step.difference}
            for step in self.steps
        ]
        return asdict(self) | {"source": str(self.source), "out": str(self.out), "steps": steps}


def edit_model(source: Path, out: Path, edits: Sequence[Edit], batch: int | None) -> EditReport:
    """Apply edits to a model one after another, check each edit, and write the result.

    Args:
        source: file of the model; the file does not change.
        out: file for the result; it is written after all checks have passed.
        edits: the edits, in order.
        batch: batch size for checking the edited model; None for the model's own batch size.

    Returns:
        The properties before and after, and the edits.

    Raises:
        InvalidOption: `out` is the same file as `source`, an edit does not suit the model, or the
            class names that an edit writes do not fit the model.
        BuildError: `source` is not a model, an edit fails, or `out` cannot be written.
    """
    if out.resolve() == source.resolve():
        raise InvalidOption(f"--out {out} is the model itself: give another file")
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
            f"{out} cannot be written ({error.strerror}): give a file in a folder that you can "
            "write to"
        ) from error
    return EditReport(source, out, Facts.of(original), Facts.of(model), tuple(steps))


def _check_names(model: onnx.ModelProto) -> None:
    """Raise InvalidOption if the class names cannot be read, or if their number does not fit."""
    metadata = metadata_of(model)
    names = labels_from_metadata(metadata, None)
    if names is None:
        raise InvalidOption(
            "--meta names is not a list of class names: give --labels FILE, or write --meta "
            '\'names=["cat", "dog"]\''
        )
    unnamed = copy_model(model)
    set_model_props(unnamed, {key: value for key, value in metadata.items() if key != "names"})
    (before, _), (after, _) = recognise_graph(unnamed), recognise_graph(model)
    if before.family is not None and after.family is None and not after.open:
        raise InvalidOption(
            f"the model has {before.num_classes} classes, but there are {len(names)} labels: give "
            "one label for each class, in the order of the training"
        )


def report_tables(report: EditReport) -> Group:
    """Return a table of the model before and after, and a table of edits with differences."""
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
        return "not compared: the sizes differ"
    return f"{step.difference:.2g}{', as expected' * step.expected}"


def edit(
    context: typer.Context,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE.onnx",
            help="File to which the command writes the edited model.",
            dir_okay=False,
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        _cut_option(
            "--input",
            metavar="TENSOR",
            help=(
                "Make this tensor an input of the model, and remove the nodes before it. May be "
                "repeated."
            ),
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        _cut_option(
            "--output",
            metavar="TENSOR",
            help=(
                "Make this tensor an output of the model, and remove the nodes after it. May be "
                "repeated."
            ),
        ),
    ] = None,
    drop_normalize: Annotated[
        bool,
        _input_option(
            *("--drop-normalize", "--drop-normalise"),
            help="Remove the normalization of the input at the start of the model.",
        ),
    ] = False,
    size: Annotated[
        str | None,
        _input_option(
            metavar="HxW|dynamic",
            help=(
                "New height and width of the input in pixels, e.g. 384x640, or dynamic for any "
                "size. Constants that depend on the size are adapted."
            ),
        ),
    ] = None,
    batch: Annotated[
        str | None,
        _input_option(
            metavar="N|dynamic",
            help=(
                "New batch size, or dynamic for any batch size. Constants of Reshape nodes are "
                "adapted."
            ),
        ),
    ] = None,
    normalize: Annotated[
        str | None,
        _input_option(
            *("--normalize", "--normalise"),
            metavar="SCALE[,MEAN[,STD]]",
            help=(
                "Add normalization to the start of the model: the input then accepts pixel values "
                "v from 0 to 255, and the model computes (v * SCALE - MEAN) / STD. MEAN and STD "
                "may be one number or one per channel: 1/255,0.485:0.456:0.406,0.229:0.224:0.225."
            ),
        ),
    ] = None,
    uint8: Annotated[
        bool,
        _input_option(
            "--uint8", help="With --normalize: change the type of the input to uint8 (bytes)."
        ),
    ] = False,
    replace_op: Annotated[
        list[str] | None,
        _names_option(
            metavar="OLD=NEW",
            help=(
                "Replace every operator of type OLD with an operator of type NEW that has the "
                "same inputs and attributes. May be repeated."
            ),
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        _names_option(
            metavar="OLD=NEW", help="Rename the input or output OLD to NEW. May be repeated."
        ),
    ] = None,
    strip: Annotated[
        bool,
        _names_option(
            "--strip-metadata", help="Remove all metadata and descriptions from the file."
        ),
    ] = False,
    meta: Annotated[
        list[str] | None,
        _names_option(
            metavar="KEY=VALUE",
            help="Write this entry into the metadata, e.g. stride=32. May be repeated.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        _names_option(
            metavar="SET|FILE",
            help=(
                "Write these class names into the metadata: a text file with one name per line, "
                "or a built-in list: coco, coco91 or imagenet."
            ),
            autocompletion=lambda: list(LABEL_SETS),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change an ONNX file: cut, rename, free the batch size, normalize the input.

    Each edit is checked: the model before and the model after the edit run on the same values. If
    an edit changes an output that it should not change, nothing is written. Edits are made in the
    order of the options below. Names of tensors in the options are their names in MODEL.onnx.

    Example: fovea edit yolov10n.onnx --out raw.onnx --output /model.23/Concat_3_output_0

    Example: fovea edit model.onnx --out batch.onnx --batch dynamic --normalize 1/255 --uint8

    Example: fovea edit yolov8n.onnx --out wide.onnx --size 384x640

    Example: fovea edit model.onnx --out named.onnx --rename output=output0 --meta stride=32
    """
    check_options(context, needs={"uint8": {"normalize": ()}})
    edits = [
        *_cut_edits(inputs or [], outputs or []),
        *_input_edits(drop_normalize, size, batch, normalize, uint8),
        *_name_edits(replace_op, rename, strip, meta, labels),
    ]
    if not edits:
        raise InvalidOption("nothing to edit: add an option, e.g. --batch dynamic")
    rows = None if batch is None else _parse_batch(batch) or _SEVERAL
    report = edit_model(model, out, edits, rows)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(report_tables(report))


def _cut_edits(inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Edit]:
    if inputs or outputs:
        yield partial(cut, inputs=inputs, outputs=outputs)


def _input_edits(
    drop: bool, size: str | None, batch: str | None, normalize: str | None, uint8: bool
) -> Iterator[Edit]:
    if drop:
        yield drop_normalisation
    if size is not None:
        yield partial(set_size, size=None if size == _ANY else parse_size(size))
    if batch is not None:
        yield partial(set_batch, batch=_parse_batch(batch))
    if normalize is not None:
        yield partial(add_normalisation, wanted=Normalisation.parse(normalize), uint8=uint8)


def _name_edits(
    operators: Sequence[str] | None,
    names: Sequence[str] | None,
    strip: bool,
    entries: Sequence[str] | None,
    labels: str | None,
) -> Iterator[Edit]:
    if operators:
        yield partial(replace_operators, operators=_pairs("--replace-op", operators))
    if names:
        yield partial(rename_tensors, names=_pairs("--rename", names))
    if strip:
        yield strip_metadata
    pairs = _pairs("--meta", entries or ())
    if labels is not None:
        if "names" in pairs:
            raise InvalidOption("give --labels or --meta names, not both")
        pairs["names"] = json.dumps(find_labels(labels))
    if pairs:
        yield partial(write_metadata, entries=pairs)


def _parse_batch(text: str) -> int | None:
    """Return the batch size in a text; None for the text "dynamic"."""
    if text == _ANY:
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise InvalidOption(
            f"--batch is {text!r}, but must be a whole number from 1 to 9999, or dynamic"
        )
    return int(text)


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidOption(
                f"{flag} is {text!r}, but must be two values with = between them, such as "
                "images=input"
            )
        if key in pairs:
            raise InvalidOption(f"{flag} is given twice for {key!r}: leave one out")
        pairs[key] = value
    return pairs
