"""`fovea predict`: runs a model on images and videos, and prints or writes the results."""

from __future__ import annotations

import shlex
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fovea_client import FoveaClientError, ServerError
from fovea_engines.backends.installing import install_extra
from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_engines.results.options import PredictOptions, check_effect
from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_preprocess.text import counted
from fovea_server.cli.options import (
    AllowCodeOption,
    EveryOption,
    RepositoryOption,
    ServedModelArgument,
    SourcesArgument,
    UrlOption,
    VersionOption,
    check_options,
    find_models,
    is_typed,
)
from fovea_server.cli.predict_output import complain, print_json, show, write_files
from fovea_server.cli.request_options import read_options, with_request_options
from fovea_server.models.model_folder import version_folder
from fovea_server.offline.answers import count_images
from fovea_server.offline.encoding import CodecName, choose_codec, slowness
from fovea_server.offline.formats.annotated import FOLDER as DRAWN
from fovea_server.offline.formats.registry import ANNOTATED, FILES, read_formats
from fovea_server.offline.predictors import LocalPredictor, Predictor, RemotePredictor
from fovea_server.offline.sources import SUFFIXES, find_sources
from fovea_server.offline.tracked import Tracking
from fovea_server.streams.zones import read_shapes
from fovea_server.tracking.tracker import check

# Error codes of a server's response that mean that the command line is wrong.
_WRONG = {InvalidOption.code, NotFound.code}
# Number of retries. A server with other clients may have a full queue for a moment.
_RETRIES = 3

_RESULTS = "Results as files"
_results_option = partial(typer.Option, rich_help_panel=_RESULTS)


@with_request_options("track", panel=_RESULTS)
@with_request_options(
    "conf",
    "iou",
    "classes",
    "max_det",
    "top_k",
    "agnostic",
    "mask",
    "labels",
    "tile",
    "overlap",
)
def predict(
    context: typer.Context,
    model: ServedModelArgument,
    sources: SourcesArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    version: VersionOption = None,
    *,
    allow_code: AllowCodeOption = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help=(
                "Return embeddings as the model computes them. Without this option, they are "
                "scaled to length 1."
            ),
        ),
    ] = False,
    every: EveryOption = 1,
    line: Annotated[
        list[str] | None,
        _results_option(
            metavar="NAME=X,Y,X,Y",
            help=(
                "Count objects that cross this line in videos, e.g. door=0.1,0.6,0.9,0.6. `fovea "
                "watch --help` explains the format. Enables --track bytetrack. May be repeated."
            ),
        ),
    ] = None,
    zone: Annotated[
        list[str] | None,
        _results_option(
            metavar="NAME=X,Y,...",
            help=(
                "Count objects in this zone in videos, e.g. yard=0.1,0.5,0.9,0.5,0.9,1,0.1,1. "
                "`fovea watch --help` explains the format. Enables --track bytetrack. May be "
                "repeated."
            ),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        _results_option(
            metavar="DIR",
            help=(
                "Folder into which the command writes the results. Without it, the results are "
                "printed."
            ),
            file_okay=False,
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        _results_option(
            metavar="FORMAT,...",
            help=(
                "Formats of the files in --out, separated by commas. annotated: images and videos "
                "with drawn results; coco: one JSON file with a COCO dataset; yolo: one label "
                "file per image; csv: one row per object; jsonl: one line of JSON per image, "
                "which is always written."
            ),
            show_default=ANNOTATED,
            autocompletion=lambda: list(FILES),
        ),
    ] = None,
    codec: Annotated[
        CodecName,
        _results_option(
            metavar="CODEC",
            help=(
                "Codec of annotated videos: h264 (requires PyAV, from the extra `streams`), vp9 "
                "(slow without PyAV), mpeg4 (browsers do not play it), or auto, the first of "
                "these that is available."
            ),
        ),
    ] = "auto",
    resume: Annotated[
        bool,
        _results_option(
            "--resume",
            help=(
                "Continue an interrupted run: keep the results that are in --out, and process only "
                "the other images."
            ),
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the results as one JSON document, in the format of a server's response.",
        ),
    ] = False,
    **given: Any,
) -> None:
    """Run a model on images and videos.

    The command runs the engine in this process, or uses a running server (--url). It prints a table
    for each image file, or one line per image for a folder, a pattern or a video. With --out it
    writes files instead.

    A folder means all images in it and in its subfolders. If an image cannot be read, the command
    continues with the next image, and exits with status 1 at the end.

    After Ctrl-C, the results so far stay in --out. The same command with --resume continues the
    run.

    Example: fovea predict yolov8n bus.jpg --url http://127.0.0.1:8000

    Example: fovea predict yolov8n images/ --out found --format coco,annotated

    Example: fovea predict yolov8n 'data/**/*.jpg' --out found --format yolo

    Example: fovea predict yolov8n street.mp4 --every 5 --out found

    Example: fovea predict yolov8n street.mp4 --out found --line door=0.1,0.6,0.9,0.6:classes=person
    """
    needs = {name: {"out": ()} for name in ("format", "codec", "resume", "track", "line", "zone")}
    # --resume cannot be combined with tracking, because the state of the tracker is lost when a run
    # is interrupted.
    again = [("resume", name) for name in ("track", "line", "zone")]
    here = [("repository", "url"), ("allow_code", "url")]
    check_options(context, needs, clashes=[*here, ("as_json", "out"), *again])
    _check_order(model, sources, repository)
    formats = read_formats(format or [ANNOTATED])
    found = find_sources(sources, every=every, drawn=out and out / DRAWN)
    tracker = given.pop("track")
    # Values out of range are rejected before any image is sent.
    values = read_options(given | {"normalize": "false" if raw else None})
    options = PredictOptions(**values)
    tracking = _tracking(tracker, line, zone, options.conf)
    has_video = any(source.is_video for source in found.files)
    if not has_video:
        _check_no_video(every, tracking)
    encoding = _encoding(context, codec, if_drawn=has_video and out and ANNOTATED in formats)
    if found.skipped:
        typer.echo(f"skipped {counted(found.skipped, 'file')} of unsupported types", err=True)
    values |= {} if version is None else {"version": version}
    alone = count_images(found.files) == 1
    try:
        how = {"alone": alone, "allow_code": allow_code}
        with _open(context, model, repository, url, options, values, **how) as predictor:
            _check_effect(options, predictor)
            if out is not None:
                counts = write_files(
                    predictor,
                    found,
                    formats,
                    encoding,
                    out,
                    values,
                    resume=resume,
                    tracking=tracking,
                )
            elif as_json:
                counts = print_json(predictor, model, found)
            else:
                counts = show(predictor, found)
    except FoveaClientError as error:
        complain(f"error: {error}")
        wrong = isinstance(error, ServerError) and error.code in _WRONG
        raise typer.Exit(2 if wrong else 1) from error
    if counts.failed:
        complain(f"error: {counts.failed} of {counted(counts.images, 'image')} failed")
        raise typer.Exit(1)


def _tracking(
    track: str | None, lines: list[str] | None, zones: list[str] | None, conf: float
) -> Tracking | None:
    """Return the settings for tracking; None if no tracking option was typed.

    Raises:
        InvalidOption: an option is wrong, or packages for tracking are not installed.
    """
    if track is None and not lines and not zones:
        return None
    options = PredictOptions(track=track or "bytetrack", conf=conf)
    if find_spec("trackers") is None:
        raise InvalidOption(
            "--track, --line and --zone need packages that are not installed (pip install "
            f"'fovea-serve[streams]'): {install_extra('streams')}"
        )
    check(options)
    return Tracking(options, read_shapes(lines or (), zones or ()))


def _check_no_video(every: int, tracking: Tracking | None) -> None:
    """Raise InvalidOption for options that have an effect on videos only."""
    if every > 1:
        raise InvalidOption("--every applies only to videos: leave it out for images")
    if tracking is not None:
        raise InvalidOption(
            "--track, --line and --zone apply only to videos: leave them out for images"
        )


def _encoding(context: typer.Context, codec: CodecName, *, if_drawn: object) -> str | None:
    """Return the codec of annotated videos; warn if encoding with it is slow.

    Return None if no video is annotated.
    """
    if not if_drawn:
        if is_typed(context, "codec"):
            raise InvalidOption(
                "--codec applies only if an annotated video is written: remove --codec"
            )
        return None
    encoding = choose_codec(codec)
    if slow := slowness(encoding):
        typer.echo(slow, err=True)
    return encoding


def _check_order(model: str, sources: list[str], repository: Path) -> None:
    """Raise InvalidOption with the right command if the model was typed after the images."""
    names = [text for text in sources if not Path(text).exists()]
    if Path(model).is_file():
        swapped = Path(model).suffix.lower() in SUFFIXES
    else:
        named = any((repository / name).is_dir() for name in names)
        swapped = named and Path(model).is_dir() and not (repository / model).is_dir()
    if swapped:
        name = names[0] if names else "MODEL"
        images = [model, *(text for text in sources if text != name)]
        raise InvalidOption(
            f"give the model before the images: {shlex.join(['fovea', 'predict', name, *images])}"
        )


def _check_effect(options: PredictOptions, predictor: Predictor) -> None:
    """Raise InvalidOption for options that a server would reject in each request."""
    # If the server cannot be reached, the first prediction reports the error.
    with suppress(FoveaClientError):
        model = predictor.describe()
        check_effect(options, model.name, model.task)


def _open(
    context: typer.Context,
    model: str,
    repository: Path,
    url: str | None,
    options: PredictOptions,
    values: dict[str, Any],
    *,
    alone: bool,
    allow_code: bool,
) -> Predictor:
    if url is not None:
        return RemotePredictor(url, model, values, retries=_RETRIES)
    [path] = find_models(context, repository, model)
    if (path / "pipeline.toml").is_file():
        # Imported here, because the import takes a second and most models are not pipelines.
        from fovea_server.cli.pipeline_predictor import JoinedPredictor

        return JoinedPredictor(path.absolute(), options, allow_code=allow_code)
    folder = version_folder(path, values.get("version"))
    return LocalPredictor(folder, options, alone=alone, allow_code=allow_code)
