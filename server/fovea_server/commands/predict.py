"""`fovea predict`: images in, a table of what is on them out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fovea_client import (
    FoveaClientError,
    ImageError,
    Prediction,
    ServerError,
)
from fovea_engines.commands.options import (
    OverlapOption,
    RepositoryOption,
    ServedModelArgument,
    TileOption,
    UrlOption,
    check_options,
    find_models,
)
from fovea_engines.detect.class_names import split_classes
from fovea_engines.detect.options import PredictOptions
from fovea_engines.plural import counted
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, version_folder
from fovea_preprocess.errors import InvalidImage, InvalidOption, NotFound
from fovea_server.commands.predictors import LocalPredictor, RemotePredictor
from fovea_server.commands.result_output import result_json, result_table

# Codes of a server's answer to what was typed here.
_WRONG = {InvalidOption.code, NotFound.code}
# A path has lost the second slash.
_ADDRESS = re.compile(r"https?:/")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The prediction for one image, or the error; and the path of its annotated image."""

    path: Path
    prediction: Prediction | None = None
    error: ImageError | None = None
    saved: Path | None = None


def predict(
    context: typer.Context,
    model: ServedModelArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files.")],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    conf: Annotated[
        float | None, typer.Option(help="Least score of an object, 0 to 1.", show_default="0.25")
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
    top_k: Annotated[
        int | None,
        typer.Option(help="Of a classifier: most classes an image.", show_default="5"),
    ] = None,
    agnostic: Annotated[
        bool, typer.Option("--agnostic", help="Suppress across classes as well.")
    ] = False,
    mask: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="Form of masks and maps: rle, polygon, png (base64) or none.",
            show_default="rle",
        ),
    ] = None,
    tile: TileOption = None,
    overlap: OverlapOption = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the images with what was found drawn in", file_okay=False
        ),
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
    check_options(context, clashes=[("repository", "url")])
    if address := next((str(path) for path in images if _ADDRESS.match(str(path))), None):
        raise InvalidOption(
            f"{address.replace(':/', '://')} is an address, and images are files: download it first"
        )
    if all(map(_objection, images)):
        raise NotFound(f"{images[0]}: {_objection(images[0])}")
    given: dict[str, Any] = {
        "conf": conf,
        "iou": iou,
        "classes": _classes(classes),
        "max_det": max_det,
        "top_k": top_k,
        "agnostic": agnostic or None,
        "mask": mask,
        "tile": tile,
        "overlap": overlap,
    }
    given = {name: value for name, value in given.items() if value is not None}
    outcomes = []
    try:
        with _open(context, model, repository, url, given) as predictor:
            for outcome in _each_outcome(predictor, images, save):
                outcomes.append(outcome)
                if outcome.error is not None:
                    _complain(f"{outcome.path}: {outcome.error.message}")
                elif not as_json:
                    _show(outcome)
    except (FoveaClientError, OSError) as error:
        _complain(f"error: {error}")
        wrong = isinstance(error, ServerError) and error.code in _WRONG
        raise typer.Exit(2 if wrong else 1) from error
    if as_json:
        sys.stdout.write(json.dumps(_document(model, outcomes), indent=2) + "\n")
    if failures := sum(outcome.error is not None for outcome in outcomes):
        _complain(f"error: {failures} of {counted(len(outcomes), 'image')} failed")
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
) -> RemotePredictor | LocalPredictor:
    options = PredictOptions(**given)  # refuses what is out of range, before anything is sent
    if url is not None:
        return RemotePredictor(url, model, given)
    [path] = find_models(context, repository, model)
    return LocalPredictor(version_folder(path), options)


def _each_outcome(
    predictor: RemotePredictor | LocalPredictor, images: list[Path], save: Path | None
) -> Iterator[_Outcome]:
    """Predict one image after the other; with `save`, write each annotated into that folder.

    It raises where the next image would fail as well.
    """
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(images):
        try:
            image = path.read_bytes()
        except OSError as error:
            code = "not_found" if isinstance(error, FileNotFoundError) else "invalid_request"
            message = _objection(path) or f"cannot be read: {error.strerror}"
            yield _Outcome(path, error=ImageError(code, message))
            continue
        try:
            prediction = predictor.predict(image)
            saved = None if save is None else _saved(save, prediction.model, path, images[:number])
            if saved is not None:
                saved.write_bytes(predictor.annotate(image))
        except InvalidImage as error:
            yield _Outcome(path, error=ImageError(error.code, str(error)))
        except ServerError as error:
            if not error.of_one_image:
                raise
            yield _Outcome(path, error=ImageError(error.code, error.message))
        else:
            yield _Outcome(path, prediction, saved=saved)


def _objection(path: Path) -> str | None:
    if path.is_dir():
        return f"it is a folder: give the images in it, {path}/*.jpg"
    return None if path.exists() else "there is no such file"


def _saved(folder: Path, model: str, path: Path, before: list[Path]) -> Path:
    """Choose the path of an annotated image: never an image's, another's, or another model's."""
    twins = sum(other.stem == path.stem for other in before)
    twin = f"-{twins + 1}" if twins else ""
    return folder / f"{path.stem}{twin}-{Path(model).name}-annotated.jpg"


def _complain(text: str) -> None:
    typer.secho(text, fg="red", err=True)


def _show(outcome: _Outcome) -> None:
    assert outcome.prediction is not None, "an error is not shown as a table"
    console, image = Console(), outcome.prediction.image
    console.print(Text(f"{outcome.path}  {image.width} x {image.height}", style="bold"))
    console.print(result_table(image))
    if outcome.saved is not None:
        console.print(Text(f"saved {outcome.saved}"), soft_wrap=True)


def _document(model: str, outcomes: list[_Outcome]) -> dict[str, Any]:
    """Join all answers as if one request had carried all images."""
    answers = [each.prediction for each in outcomes if each.prediction is not None]
    timings = [asdict(answer.timing_ms) for answer in answers]
    slowest = {stage: max(t[stage] for t in timings) for stage in (timings[0] if timings else ())}
    total = {"total": round(sum(t["total"] for t in timings), 3)}
    return {
        "model": answers[0].model if answers else model,
        "version": answers[0].version if answers else None,
        "task": answers[0].task if answers else None,
        "images": [_image_json(outcome) for outcome in outcomes],
        "timing_ms": slowest | total,
    }


def _image_json(outcome: _Outcome) -> dict[str, Any]:
    if outcome.prediction is None:
        return {"error": asdict(outcome.error) if outcome.error else None}
    return result_json(outcome.prediction.image)
