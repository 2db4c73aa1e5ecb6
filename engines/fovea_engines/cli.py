"""The commands `fovea build` and `fovea inspect`."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.backends.registry import DEFAULT_CPU_BACKEND
from fovea_engines.card import EngineCard
from fovea_engines.console import card_table, model_table, repository_table
from fovea_engines.inspection import Entry, read_folder, read_model_file
from fovea_engines.labels import read_labels
from fovea_engines.plan import BuildPlan
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import FoveaError, InvalidOption


class Backend(StrEnum):
    """Choices of `fovea build --backend`."""

    AUTO = "auto"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def build(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The exported model.")],
    repository: Annotated[
        Path, typer.Option(metavar="DIR", help="Model repository; made when it is not there.")
    ] = Path("repository"),
    name: Annotated[
        str | None, typer.Option(help="Name of the model.", show_default="name of the file")
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help=f"Runtime; auto is the fastest here: {DEFAULT_CPU_BACKEND}.")
    ] = Backend.AUTO,
    size: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Input size in pixels.", show_default="the model's own"),
    ] = None,
    max_batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Most pictures in one call. 1 is best on a CPU: there, a core a picture is "
            "faster than batches.",
        ),
    ] = 1,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Class names, one a line.", show_default="from the model"
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            "--family",
            metavar="FAMILY",
            help="Head family, where it is not recognised.",
            show_default="recognised",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Pictures to check the engine on.", show_default="drawn ones"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build an ONNX model into a checked engine.

    The graph is simplified, compiled, and run beside the source model: boxes must agree within
    1 pixel and scores within 0.01, else nothing is published. The engine becomes the next version
    of the model; building the same again does nothing.

    Example: fovea build yolov8n.onnx --name people
    """
    from rich.console import Console

    from fovea_engines.build import build as build_engine

    plan = BuildPlan(
        source=model,
        name=model.stem if name is None else name,
        repository=repository,
        backend=DEFAULT_CPU_BACKEND if backend is Backend.AUTO else backend.value,
        size=None if size is None else _parse_size(size),
        max_batch=max_batch,
        labels=None if labels is None else read_labels(labels),
        family=head,
        images=images,
    )
    card = build_engine(plan, ConsoleProgress())
    version = ModelRepository(repository).find(card.name, card.content_key) or 0
    if as_json:
        typer.echo(json.dumps({"version": version, "card": card.to_json()}, indent=2))
        return
    console = Console()
    console.print(card_table(card, version))
    console.print(f"Serve it: fovea serve {repository}", markup=False, soft_wrap=True)


def inspect(
    path: Annotated[
        Path,
        typer.Argument(help="An .onnx file, a version's folder, a model's, or a repository."),
    ],
    head: Annotated[
        str | None, typer.Option("--head", "--family", metavar="FAMILY", help="Try this family.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is, and why.

    Its tensors, its head and why that one, its labels, and how well the engine agrees.

    Example: fovea inspect yolov8n.onnx
    """
    from rich.console import Console

    console = Console()
    if path.is_dir():
        entries = read_folder(path)
        document: object = [entry.to_json() for entry in entries]
        match entries:
            case [Entry(engine=EngineCard() as card, version=version)]:
                table = card_table(card, version)
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


def _parse_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text.strip().lower())
    if match is None:
        raise InvalidOption(f"size is {text!r}; write HEIGHTxWIDTH, e.g. 640x640")
    return int(match[1]), int(match[2] or match[1])
