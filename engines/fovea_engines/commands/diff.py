"""The command `fovea diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.commands.option_rules import check_options
from fovea_engines.commands.options import AsJson, RepositoryOption, find_models
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.repository import DEFAULT_REPOSITORY

# Of the table where no terminal says how wide it is.
_WIDE = 140


def diff(
    context: typer.Context,
    a: Annotated[
        str, typer.Argument(metavar="A", help="The reference model: .onnx, or an engine.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The model to compare with it, likewise.")],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Images to run, at most 4 of them.",
            show_default="3 that ship with Fovea",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    snr: Annotated[
        float | None,
        typer.Option(
            metavar="DB",
            help="A tensor under this SNR diverges.",
            show_default="by precision: 60 in FP32, 15 to 20 in FP16, 10 to 18 in INT8",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every tensor.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Show the first five values that are not zero.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the first layer at which two models part.

    Two exports, two precisions, or a file and the engine built from it (its name in the
    repository, or a folder: repository/yolov8n, or repository/yolov8n/1). Layers are matched by
    name; where names differ, by the order of operators and shapes. Casts and quantisation count
    to the layer they follow. An OpenVINO engine is compiled anew for each tensor: that takes a
    minute or two.

    Exit code: 0 only when nothing diverges and every output was judged.

    Example: fovea diff yolov8n.onnx yolov8n-int8.onnx --images images
    """
    from rich.console import Console

    from fovea_engines.commands.diff_table import diff_table, header
    from fovea_engines.diff.describe import to_json, verdict
    from fovea_engines.diff.diff import diff as compare

    check_options(context, clashes=[("everything", "as_json"), ("values", "as_json")])
    path_a, path_b = find_models(context, repository, a, b)
    found = compare(path_a, path_b, images, snr, ConsoleProgress())
    if as_json:
        typer.echo(json.dumps(to_json(found), indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDE
        console.print(header(found), markup=False, highlight=False, soft_wrap=True)
        console.print(diff_table(found, everything=everything, values=values))
        console.print(verdict(found), markup=False, highlight=False, soft_wrap=True)
    if not found.agrees:
        raise typer.Exit(1)
