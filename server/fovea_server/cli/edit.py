"""Declares `fovea edit`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fovea_engines.edit.cut import cut
from fovea_engines.edit.input_shape import set_batch, set_size
from fovea_engines.edit.names import (
    rename as rename_tensors,
)
from fovea_engines.edit.names import (
    replace_operators,
    strip_metadata,
    write_metadata,
)
from fovea_engines.edit.normalisation import (
    Normalisation,
    add_normalisation,
    drop_normalisation,
)
from fovea_engines.repository.labels import LABEL_SETS, find_labels
from fovea_preprocess.errors import InvalidOption
from fovea_server.cli.editing import Edit, edit_model, report_tables
from fovea_server.cli.options import AsJson, ModelArgument, check_options, parse_size

_cut_option = partial(typer.Option, rich_help_panel="Cut")
_input_option = partial(typer.Option, rich_help_panel="Input")
_names_option = partial(typer.Option, rich_help_panel="Names and operators")
_ANY = "dynamic"
_SEVERAL = 2  # rows with which a dynamic batch is checked
# Of the table where no terminal says how wide it is.
_WIDE = 140


def edit(
    context: typer.Context,
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option(metavar="FILE.onnx", help="The edited model.", dir_okay=False)
    ],
    inputs: Annotated[
        list[str] | None,
        _cut_option(
            "--input",
            metavar="TENSOR",
            help="Make this tensor an input, and drop what leads to it. May be repeated.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        _cut_option(
            "--output",
            metavar="TENSOR",
            help="Make this tensor an output, and drop what follows. May be repeated.",
        ),
    ] = None,
    drop_normalise: Annotated[
        bool,
        _input_option("--drop-normalise", help="Drop the arithmetic with which the model begins."),
    ] = False,
    size: Annotated[
        str | None,
        _input_option(
            metavar="HxW|dynamic",
            help="Input size in pixels, or any; the constants of a grid are computed for it.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        _input_option(
            metavar="N|dynamic",
            help="Rows of a call, also where the shapes of Reshape are made for another number.",
        ),
    ] = None,
    normalise: Annotated[
        str | None,
        _input_option(
            metavar="SCALE[,MEAN[,STD]]",
            help="Take 0 to 255, and begin with (v * SCALE - MEAN) / STD: 1/255, or one number a "
            "channel as in 1/255,0.485:0.456:0.406,0.229:0.224:0.225.",
        ),
    ] = None,
    uint8: Annotated[bool, _input_option("--uint8", help="With --normalise: take bytes.")] = False,
    replace_op: Annotated[
        list[str] | None,
        _names_option(
            metavar="OLD=NEW",
            help="Let an operator take the place of another, with its inputs and attributes. May "
            "be repeated.",
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        _names_option(metavar="OLD=NEW", help="Rename an input or output. May be repeated."),
    ] = None,
    strip: Annotated[
        bool, _names_option("--strip-metadata", help="Remove metadata and descriptions.")
    ] = False,
    meta: Annotated[
        list[str] | None,
        _names_option(
            metavar="KEY=VALUE", help="Write metadata, e.g. task, names or stride. May be repeated."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        _names_option(
            metavar="SET|FILE",
            help="Write class names into the metadata, as `fovea build --labels` takes them.",
            autocompletion=lambda: list(LABEL_SETS),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change an ONNX file: cut it, free its batch, normalise its input, rename, and more.

    Each edit is checked: both models run on the same values, and if an output changes that should
    not, nothing is written. Edits are made in the order of the options below, whose names are
    those of MODEL.onnx.

    Example: fovea edit yolov10n.onnx --out raw.onnx --output /model.23/Concat_3_output_0

    Example: fovea edit model.onnx --out batch.onnx --batch dynamic --normalise 1/255 --uint8

    Example: fovea edit yolov8n.onnx --out wide.onnx --size 384x640

    Example: fovea edit model.onnx --out named.onnx --rename output=output0 --meta stride=32
    """
    check_options(context, needs={"uint8": {"normalise": ()}})
    edits = [
        *_cut_edits(inputs or [], outputs or []),
        *_input_edits(drop_normalise, size, batch, normalise, uint8),
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
    drop: bool, size: str | None, batch: str | None, normalise: str | None, uint8: bool
) -> Iterator[Edit]:
    if drop:
        yield drop_normalisation
    if size is not None:
        yield partial(set_size, size=None if size == _ANY else parse_size(size))
    if batch is not None:
        yield partial(set_batch, batch=_parse_batch(batch))
    if normalise is not None:
        yield partial(add_normalisation, wanted=Normalisation.parse(normalise), uint8=uint8)


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
    """Return the rows of a call; None where they are dynamic."""
    if text == _ANY:
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise InvalidOption(f"--batch is {text!r}; give a whole number from 1 to 9999, or dynamic")
    return int(text)


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidOption(f"{flag} is {text!r}; write two names with = between them")
        if key in pairs:
            raise InvalidOption(f"{flag} is given twice for {key!r}: leave one out")
        pairs[key] = value
    return pairs
