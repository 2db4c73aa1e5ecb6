"""The command `fovea inspect`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fovea_engines.commands.console import card_table, ensemble_table, model_table, repository_table
from fovea_engines.commands.inspection import Entry, read_folder, read_layers, read_model_file
from fovea_engines.commands.option_rules import check_options
from fovea_engines.commands.options import AsJson, RepositoryOption, find_models
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.ensemble import Ensemble
from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_preprocess.errors import FoveaError, InvalidOption


def inspect(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|PATH",
            help="A name in the repository, an .onnx file, or the folder of a version, of a model "
            "or of a repository.",
            show_default="the repository",
        ),
    ] = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
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

    Example: fovea inspect yolov8n --layers
    """
    from rich.console import Console, Group, RenderableType

    from fovea_engines.commands.layer_table import layer_table, layers_summary

    check_options(context, clashes=[("head", "layers")])
    path = repository if model is None else find_models(context, repository, model)[0]
    if head is not None and path.is_dir():
        raise InvalidOption("--head is for .onnx files: the head of an engine was chosen by build")
    console = Console()
    if layers:
        found = read_layers(path)
        document: object = found.to_json()
        table: RenderableType = Group(layers_summary(found), layer_table(found))
    elif model is None or path.is_dir():
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
        file = read_model_file(path, head)
        document, table = file.to_json(), model_table(file, path.name)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        console.print(table)
