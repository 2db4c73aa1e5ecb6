"""`fovea diff`: finds the layer at which two models differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fovea_engines.inspect.describe import decibels, shape, to_json, verdict
from fovea_engines.inspect.diff import Diff
from fovea_engines.inspect.diff import diff as compare
from fovea_engines.inspect.network import Layer
from fovea_engines.inspect.verdict import Comparison
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_preprocess.errors import InvalidOption
from fovea_server.cli.options import (
    AsJson,
    HeadOption,
    RepositoryOption,
    check_options,
    find_models,
    folder_option,
    head_name,
    model_names,
)

# Width in columns of the table if stdout is not a terminal.
_WIDE = 140
_AROUND = 3
_LOWEST = 6
_NAMES_SHOWN = 6


def diff(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help=(
                "Reference model: an .onnx file, or an engine, e.g. yolov8n or "
                "repository/yolov8n/1."
            ),
            autocompletion=model_names,
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help=(
                "Model to compare with A: an .onnx file, or an engine, e.g. yolov8n or "
                "repository/yolov8n/1."
            ),
            autocompletion=model_names,
        ),
    ],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    images: Annotated[
        Path | None,
        folder_option(
            help="Folder of images on which both models run; at most 4 images are used.",
            show_default="3 images that ship with Fovea",
        ),
    ] = None,
    head: HeadOption = None,
    snr: Annotated[
        float | None,
        typer.Option(
            metavar="DB",
            help=(
                "Signal-to-noise ratio in dB; a tensor of B with a lower ratio counts as different."
            ),
            show_default="by precision: 60 in FP32, 15 to 20 in FP16, 10 to 18 in INT8",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help=(
                "Show all tensors. Without this option, the table has only the outputs and the "
                "tensors around the first difference."
            ),
        ),
    ] = False,
    values: Annotated[
        bool,
        typer.Option(
            "--values",
            help="Show the first five nonzero values of each listed tensor in both models.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the first layer at which two models differ.

    The models can be two exports, two precisions, or an ONNX file and the engine that was built
    from it. Give an engine as a name in the repository, or as a folder: repository/yolov8n/1.
    Layers are matched by name. If names differ, they are matched by the order of operators and
    shapes. Casts and quantisation count as part of the layer before them. If an OpenVINO engine
    differs, it is compiled again for each of its tensors, which takes minutes.

    The exit status is 1 if a tensor differs, or if an output cannot be compared.

    Example: fovea diff yolov8n.onnx yolov8n-int8.onnx --images images
    """
    check_options(context, clashes=[("everything", "as_json"), ("values", "as_json")])
    path_a, path_b = find_models(context, repository, a, b)
    if head is not None and path_a.is_dir() and path_b.is_dir():
        raise InvalidOption(
            "--head applies only to .onnx files: `fovea build` has fixed the head of an engine"
        )
    found = compare(path_a, path_b, images, snr, ConsoleProgress(), head_name(head))
    if as_json:
        typer.echo(json.dumps(to_json(found), indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDE
        console.print(_header(found), markup=False, highlight=False, soft_wrap=True)
        console.print(_table(found, everything=everything, values=values))
        console.print(verdict(found), markup=False, highlight=False, soft_wrap=True)
    if not found.agrees:
        raise typer.Exit(1)


def _header(found: Diff) -> str:
    by = [one.by for one in found.layers]
    lines = [
        f"A: {found.a} ({found.precision_a})",
        f"B: {found.b} ({found.precision_b})",
        f"input images: {', '.join(found.images)}",
        f"tensors: {by.count('name')} matched by name, {by.count('order')} by order; "
        f"without a counterpart {len(found.unmatched_a)} of A, {len(found.unmatched_b)} of B",
    ]
    for side, layers in (("A", found.unmatched_a), ("B", found.unmatched_b)):
        if layers:
            lines.append(f"  only in {side}: {_names(layers)}")
    return "\n".join(lines)


def _table(found: Diff, *, everything: bool, values: bool) -> Table:
    """Return a table of the outputs and of the layers near the divergence or the lowest SNR."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("#", justify="right")
    table.add_column("tensor of A\n~ of B, if other", overflow="fold")
    table.add_column("range of A\nand of B", justify="right", no_wrap=True)
    table.add_column("cosine", justify="right")
    table.add_column("SNR dB", justify="right")
    table.add_column("max error", justify="right")
    if values:
        table.add_column("first values of A\nand of B", overflow="fold")
    last = -1
    for position in range(len(found.layers)) if everything else _choose_layers(found):
        one = found.layers[position]
        if position > last + 1:
            table.add_section()
        last = position
        cells = [str(position), _title(one), *_figures(one)]
        if values and one.figures is not None:
            cells.append("\n".join(" ".join(f"{v:.4g}" for v in row) for row in one.figures.values))
        style = "bold red" if one is found.first else "red" if one.state == "diverges" else ""
        table.add_row(*map(Text, cells), style=style)
    return table


def _choose_layers(found: Diff) -> list[int]:
    outputs = {i for i, one in enumerate(found.layers) if one.a.is_output}
    if found.first is not None:
        first = found.layers.index(found.first)
        around = range(max(0, first - _AROUND), min(len(found.layers), first + _AROUND + 1))
        return sorted(outputs.union(around))
    lowest = sorted(range(len(found.layers)), key=lambda i: found.layers[i].snr_db)[:_LOWEST]
    return sorted(outputs.union(lowest))


def _title(one: Comparison) -> str:
    name = one.a.name if one.by == "name" else f"{one.a.name}\n~ {one.b.name}"
    op = " ~ ".join(dict.fromkeys(op for op in (one.a.op, one.b.op) if op))
    marks: list[str] = [one.state] if one.state != "agrees" else []
    marks += ["output"] if one.a.is_output else []
    return f"{name}\n{', '.join([f'{op} {shape(one.a)}'.lstrip(), *marks])}"


def _figures(one: Comparison) -> tuple[str, str, str, str]:
    figures = one.figures
    if figures is None:
        return "", "", f"shape\n{shape(one.b)}", ""
    ranges = (figures.range_a, figures.range_b)
    snr = f"{figures.broken} not finite" if figures.broken else decibels(one.snr_db)
    return (
        "\n".join(f"{low:.4g} .. {high:.4g}" for low, high in ranges),
        f"{figures.cosine:.5f}",
        snr.removesuffix(" dB"),
        f"{figures.max_error:.3g}",
    )


def _names(layers: Sequence[Layer]) -> str:
    more = f", ... ({len(layers)})" if len(layers) > _NAMES_SHOWN else ""
    return ", ".join(layer.name for layer in layers[:_NAMES_SHOWN]) + more
