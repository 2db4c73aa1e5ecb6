"""`fovea predict`: images in, a table of what is on them out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fovea_engines.commands.option_rules import check_options
from fovea_engines.commands.options import (
    RepositoryOption,
    ServedModelArgument,
    UrlOption,
    find_models,
)
from fovea_engines.detect.class_names import split_classes
from fovea_engines.detect.options import PredictOptions
from fovea_engines.plural import counted
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, version_folder
from fovea_preprocess.errors import InvalidOption, NotFound

if TYPE_CHECKING:
    from fovea_server.commands.predictors import Predictor

# Codes of a server's answer to what was typed here.
_WRONG = {InvalidOption.code, NotFound.code}


def predict(
    context: typer.Context,
    model: ServedModelArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files.")],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    conf: Annotated[
        float | None, typer.Option(help="Least score, 0 to 1.", show_default="0.25")
    ] = None,
    iou: Annotated[
        float | None,
        typer.Option(
            help="Overlap above which the weaker box is dropped, 0 to 1.", show_default="0.7"
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="CLASSES",
            help='Classes to keep, names or ids, e.g. person,2; "2" in quotes is a name.',
            show_default="all",
        ),
    ] = None,
    max_det: Annotated[
        int | None, typer.Option(help="Most detections an image.", show_default="300")
    ] = None,
    agnostic: Annotated[
        bool, typer.Option("--agnostic", help="Suppress across classes as well.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the images with boxes drawn in.", file_okay=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document, as the server answers.")
    ] = False,
) -> None:
    """Find what is on images.

    Opens the engine right here, or asks a running server (--url).

    An image that cannot be read fails only itself. Exits with 1 when any has failed.

    Example: fovea predict yolov8n bus.jpg --url http://127.0.0.1:8000
    """
    # Commands share one program, and `fovea serve` is not to wait for what only this one needs.
    from fovea_client import FoveaClientError, ServerError
    from fovea_server.commands.outcomes import complain, document, each_outcome, failed, show

    check_options(context, clashes=[("repository", "url")])
    if not any(path.exists() for path in images):
        raise NotFound(f"{images[0]} is not there")
    given: dict[str, Any] = {
        "conf": conf,
        "iou": iou,
        "classes": _classes(classes),
        "max_det": max_det,
        "agnostic": agnostic or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    outcomes = []
    try:
        with _open(context, model, repository, url, given) as predictor:
            for outcome in each_outcome(predictor, images, save):
                outcomes.append(outcome)
                show(outcome, table=not as_json)
    except (FoveaClientError, OSError) as error:
        complain(f"error: {error}")
        wrong = isinstance(error, ServerError) and error.code in _WRONG
        raise typer.Exit(2 if wrong else 1) from error
    if as_json:
        sys.stdout.write(json.dumps(document(model, outcomes), indent=2) + "\n")
    if failures := sum(map(failed, outcomes)):
        complain(f"error: {failures} of {counted(len(outcomes), 'image')} failed")
        raise typer.Exit(1)


def _classes(text: str | None) -> tuple[int | str, ...] | None:
    if text is None:
        return None
    try:
        return split_classes(text)
    except ValueError as error:
        raise InvalidOption(
            f"--classes {text!r} is not a list of class names or ids such as person,2"
        ) from error


def _open(
    context: typer.Context, model: str, repository: Path, url: str | None, given: dict[str, Any]
) -> Predictor:
    from fovea_server.commands.predictors import LocalPredictor, RemotePredictor

    options = PredictOptions(**given)  # refuses what is out of range, before anything is sent
    if url is not None:
        return RemotePredictor(url, model, given)
    [path] = find_models(context, repository, model)
    return LocalPredictor(version_folder(path), options)
