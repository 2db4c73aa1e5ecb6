"""The command `fovea inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.card import EngineCard
from fovea_engines.cli_options import AsJson
from fovea_engines.console import card_table, ensemble_table, model_table, repository_table
from fovea_engines.ensemble import Ensemble
from fovea_engines.inspection import Entry, read_folder, read_layers, read_model_file
from fovea_preprocess.errors import FoveaError


def inspect(
    path: Annotated[
        Path,
        typer.Argument(help="An .onnx file, a version's folder, a model's, or a repository."),
    ],
    head: Annotated[
        str | None, typer.Option("--head", "--family", metavar="FAMILY", help="Try this family.")
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="The layers of a TensorRT engine, one a row.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model is, and why.

    Its tensors, its head and why that one, its labels, and how well the engine agrees.

    Example: fovea inspect yolov8n.onnx

    Example: fovea inspect repository/yolov8n --layers
    """
    from rich.console import Console, Group, RenderableType

    from fovea_engines.tensorrt.layer_table import layer_table, layers_summary

    console = Console()
    if layers:
        found = read_layers(path)
        document: object = found.to_json()
        table: RenderableType = Group(layers_summary(found), layer_table(found))
    elif path.is_dir():
        entries = read_folder(path)
        document = [entry.to_json() for entry in entries]
        match entries:
            case [Entry(engine=EngineCard() as card, version=version)]:
                table = card_table(card, version)
            case [Entry(engine=Ensemble() as ensemble, version=version)]:
                table = ensemble_table(ensemble, version)
            case [Entry(engine=FoveaError() as error)]:
                raise error
            case _:
                table = repository_table(entries)
    else:
        model = read_model_file(path, head)
        document, table = model.to_json(), model_table(model, path.name)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        console.print(table)
