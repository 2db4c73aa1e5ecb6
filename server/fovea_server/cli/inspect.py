"""`fovea inspect`: shows a model file, an engine, or a repository."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fovea_engines.backends.tensorrt.layers_file import PlanLayers
from fovea_engines.inspect.inspection import read_layers, read_model_file
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.config_pbtxt import Ensemble
from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_server.cli.card_table import card_table, shape_text
from fovea_server.cli.inspect_models import InspectedModel, read_folder
from fovea_server.cli.inspect_tables import (
    ensemble_table,
    model_table,
    repository_table,
    stage_table,
)
from fovea_server.cli.options import (
    AsJson,
    HeadOption,
    RepositoryOption,
    check_options,
    find_models,
    head_name,
    model_names,
)

_KINDS = 6
_SOURCES = {
    "engine": "as they run on the GPU, fused",
    "network": "as they were built, before a GPU fuses them at load",
}


def inspect(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|PATH",
            help=(
                "Name of a model in the repository; or path of an .onnx file, or of the folder of "
                "a version, a model or a repository."
            ),
            show_default="the repository",
            autocompletion=model_names,
        ),
    ] = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    head: HeadOption = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="List the layers of a TensorRT engine instead of its properties."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the tensors, head, labels and agreement of a model or a repository.

    Example: fovea inspect yolov8n.onnx

    Example: fovea inspect yolov8n --layers
    """
    check_options(context, clashes=[("head", "layers")])
    path = repository if model is None else find_models(context, repository, model)[0]
    if head is not None and path.is_dir():
        raise InvalidOption(
            "--head applies only to .onnx files: `fovea build` has fixed the head of an engine"
        )
    console, faults = Console(), list[str]()
    if layers:
        found = read_layers(path)
        document: object = found.to_json()
        table: RenderableType = Group(layers_summary(found), layer_table(found))
    elif model is None or path.is_dir():
        entries = read_folder(path)
        document = [entry.to_json() for entry in entries]
        faults = list(dict.fromkeys(fault for entry in entries for fault in entry.faults))
        match entries:
            case [InspectedModel(engine=EngineCard() as card, version=version, standing=standing)]:
                table = card_table(card, version, standing)
            case [InspectedModel(engine=Ensemble() as ensemble, version=version)]:
                table = ensemble_table(ensemble, version)
            case [InspectedModel(engine=tuple() as stages, name=name, reference=reference)]:
                table = stage_table(stages, name, reference)
            case [InspectedModel(engine=FoveaError() as error)]:
                raise error
            case _:
                table = repository_table(entries)
    else:
        file = read_model_file(path, head_name(head))
        document, table = asdict(file), model_table(file, path.name)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        console.print(table)
        for fault in faults:
            typer.echo(fault)


def layers_summary(layers: PlanLayers) -> str:
    """Return one line with the numbers of layers of each type and precision."""
    counted = Counter((layer.type, layer.precision) for layer in layers.layers)
    kinds = [
        f"{count} {kind} {precision}".rstrip()
        for (kind, precision), count in counted.most_common(_KINDS)
    ]
    if more := len(layers.layers) - sum(count for _, count in counted.most_common(_KINDS)):
        kinds.append(f"{more} others")
    return f"{len(layers.layers)} layers, {_SOURCES[layers.source]}: {', '.join(kinds)}"


def layer_table(layers: PlanLayers) -> Table:
    """Return a table with one layer per row."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    table.add_column("type", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    table.add_column("gives", overflow="fold")
    for layer in layers.layers:
        cells = (layer.name, layer.type, layer.precision)
        table.add_row(*map(Text, (*cells, _shapes(layer.outputs))))
    return table


def _shapes(tensors: tuple[TensorSpec, ...]) -> str:
    counted = Counter(shape_text(tensor) or "one value" for tensor in tensors)
    return "\n".join(f"{count} of {text}" if count > 1 else text for text, count in counted.items())
