"""`fovea predict`: images and videos in; tables, labels and annotated images of them out."""

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
from fovea_engines.results.class_names import split_classes, split_texts
from fovea_engines.results.options import PredictOptions, check_effect
from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_preprocess.plural import counted
from fovea_server.cli.options import (
    OverlapOption,
    RepositoryOption,
    ServedModelArgument,
    TileOption,
    UrlOption,
    VersionOption,
    check_options,
    find_models,
    is_typed,
)
from fovea_server.cli.predict_output import complain, print_json, show, write_files
from fovea_server.models.beside import version_folder
from fovea_server.offline.answers import count_images
from fovea_server.offline.encoding import CodecName, choose_codec, slowness
from fovea_server.offline.formats.annotated import FOLDER as DRAWN
from fovea_server.offline.formats.registry import ANNOTATED, FILES, read_formats
from fovea_server.offline.predictors import LocalPredictor, Predictor, RemotePredictor
from fovea_server.offline.sources import SUFFIXES, find_sources
from fovea_server.offline.tracked import Tracking
from fovea_server.streams.zones import read_shapes
from fovea_server.tracking.tracker import check

# Codes of a server's answer to what was typed here.
_WRONG = {InvalidOption.code, NotFound.code}
# A server that others use as well may be full for a moment.
_RETRIES = 3

_results_option = partial(typer.Option, rich_help_panel="Results as files")


def predict(
    context: typer.Context,
    model: ServedModelArgument,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Image files, folders of images, globs in quotes, videos (mp4, avi, mkv, mov, "
            "webm).",
        ),
    ],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    version: VersionOption = None,
    conf: Annotated[
        float | None,
        typer.Option(
            help="Lowest score of an object, 0 to 1; a classifier has --top-k.", show_default="0.25"
        ),
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
            help='Classes to keep, by name or id, e.g. person,2; "2" in quotes is a name.',
            show_default="all",
        ),
    ] = None,
    max_det: Annotated[
        int | None, typer.Option(help="Most detections per image.", show_default="300")
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Most classes per image, of a classifier.", show_default="5"),
    ] = None,
    agnostic: Annotated[
        bool, typer.Option("--agnostic", help="Drop overlapping boxes of different classes, too.")
    ] = False,
    mask: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="Form of masks and maps: rle, polygon, png (base64) or none.",
            show_default="rle",
        ),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            "--texts",
            "--labels",
            metavar="TEXTS",
            help="Of a model of images and texts, such as CLIP: classify by these, e.g. "
            "'a cat,a dog'. Of a detector that takes texts: find these.",
            show_default="none",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Of an embedding: the vector with its own length.")
    ] = False,
    tile: TileOption = None,
    overlap: OverlapOption = None,
    every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Take every N-th frame of a video.")
    ] = 1,
    track: Annotated[
        str | None,
        _results_option(
            metavar="TRACKER",
            help="Objects of videos keep ids: bytetrack, sort, ocsort or botsort.",
        ),
    ] = None,
    line: Annotated[
        list[str] | None,
        _results_option(
            metavar="NAME=X,Y,X,Y",
            help="Of videos: count who crosses it, as `fovea watch` does. It tracks, with "
            "bytetrack.",
        ),
    ] = None,
    zone: Annotated[
        list[str] | None,
        _results_option(
            metavar="NAME=X,Y,...", help="Of videos: count who is in it, as `fovea watch` does."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        _results_option(metavar="DIR", help="Write the results into this folder.", file_okay=False),
    ] = None,
    format: Annotated[
        list[str] | None,
        _results_option(
            metavar="FORMAT,...",
            help="annotated: images and videos with the results drawn in; coco: a dataset in one "
            "JSON file; yolo: a label file per image; csv: a row per object; jsonl: a line "
            "of JSON per image, always written.",
            show_default=ANNOTATED,
            autocompletion=lambda: list(FILES),
        ),
    ] = None,
    codec: Annotated[
        CodecName,
        _results_option(
            metavar="CODEC",
            help="Codec of annotated videos: h264, which takes PyAV (the extra `streams`); vp9, "
            "slow without PyAV; mpeg4, which browsers do not play; auto, the first that is "
            "there.",
        ),
    ] = "auto",
    resume: Annotated[
        bool,
        _results_option("--resume", help="Continue an interrupted run into --out."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document, as the server answers.")
    ] = False,
) -> None:
    """Find what is on images and videos.

    Runs the engine in this process, or asks a running server (--url). Prints a table per image, or
    a line per image of a folder, a glob or a video; --out writes files instead.

    A folder stands for all images below it. An image that cannot be read does not stop the others,
    and the exit code is then 1.

    Ctrl-C keeps the results so far, and the same command with --resume continues.

    Example: fovea predict yolov8n bus.jpg --url http://127.0.0.1:8000

    Example: fovea predict yolov8n images/ --out found --format coco,annotated

    Example: fovea predict yolov8n 'data/**/*.jpg' --out found --format yolo

    Example: fovea predict yolov8n street.mp4 --every 5 --out found

    Example: fovea predict yolov8n street.mp4 --out found --line door=0.1,0.6,0.9,0.6:classes=person
    """
    needs = {"format": {"out": ()}, "codec": {"out": ()}, "resume": {"out": ()}}
    needs |= {name: {"out": ()} for name in ("track", "line", "zone")}
    # An interrupted run leaves no record of the ids of objects.
    again = [("resume", name) for name in ("track", "line", "zone")]
    check_options(context, needs, clashes=[("repository", "url"), ("as_json", "out"), *again])
    _check_order(model, sources, repository)
    formats = read_formats(format or [ANNOTATED])
    found = find_sources(sources, every=every, drawn=out and out / DRAWN)
    has_video = any(source.is_video for source in found.files)
    if every > 1 and not has_video:
        raise InvalidOption("--every is of videos, and there is none: leave it out")
    tracking = _tracking(track, line, zone, 0.25 if conf is None else conf)
    if tracking is not None and not has_video:
        raise InvalidOption("--track, --line and --zone are of videos, and there is none")
    encoding = choose_codec(codec) if has_video and out and ANNOTATED in formats else None
    if encoding is None and is_typed(context, "codec"):
        raise InvalidOption("--codec is of annotated videos, and none is written: leave it out")
    if encoding is not None and (slow := slowness(encoding)):
        typer.echo(slow, err=True)
    if found.skipped:
        typer.echo(f"skipped {counted(found.skipped, 'file')} of other kinds", err=True)
    given: dict[str, Any] = {
        "conf": conf,
        "iou": iou,
        "classes": _classes(classes),
        "max_det": max_det,
        "top_k": top_k,
        "agnostic": agnostic or None,
        "mask": mask,
        "labels": _texts(texts),
        "normalise": False if raw else None,
        "tile": tile,
        "overlap": overlap,
    }
    given = {name: value for name, value in given.items() if value is not None}
    options = PredictOptions(**given)  # refuses what is out of range, before anything is sent
    given |= {} if version is None else {"version": version}
    alone = count_images(found.files) == 1
    try:
        with _open(context, model, repository, url, options, given, alone=alone) as predictor:
            _check_effect(options, predictor)
            if out is not None:
                tally = write_files(
                    *(predictor, found, formats, encoding, out, given),
                    resume=resume,
                    tracking=tracking,
                )
            elif as_json:
                tally = print_json(predictor, model, found)
            else:
                tally = show(predictor, found)
    except FoveaClientError as error:
        complain(f"error: {error}")
        wrong = isinstance(error, ServerError) and error.code in _WRONG
        raise typer.Exit(2 if wrong else 1) from error
    if tally.failed:
        complain(f"error: {tally.failed} of {counted(tally.images, 'image')} failed")
        raise typer.Exit(1)


def _tracking(
    track: str | None, lines: list[str] | None, zones: list[str] | None, conf: float
) -> Tracking | None:
    """Return what is followed in videos; None without; InvalidOption says what is wrong."""
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


def _check_order(model: str, sources: list[str], repository: Path) -> None:
    """Refuse a model that stands after the images, and write the command as it is meant."""
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
            f"the model comes before the images: {shlex.join(['fovea', 'predict', name, *images])}"
        )


def _check_effect(options: PredictOptions, predictor: Predictor) -> None:
    """Refuse, as InvalidOption, options that a server would refuse for each image."""
    # Where the server does not answer, the prediction reports it.
    with suppress(FoveaClientError):
        model = predictor.describe()
        check_effect(options, model.name, model.task)


def _classes(text: str | None) -> tuple[int | str, ...] | None:
    if text is None:
        return None
    try:
        return split_classes(text)
    except ValueError as error:
        raise InvalidOption(
            f"--classes {text!r} is not a list of class names or ids such as person,2"
        ) from error


def _texts(text: str | None) -> tuple[str, ...] | None:
    try:
        return None if text is None else split_texts(text)
    except ValueError as error:
        raise InvalidOption(f"--texts {text!r} is not a list such as 'a cat,a dog'") from error


def _open(
    context: typer.Context,
    model: str,
    repository: Path,
    url: str | None,
    options: PredictOptions,
    given: dict[str, Any],
    *,
    alone: bool,
) -> Predictor:
    if url is not None:
        return RemotePredictor(url, model, given, retries=_RETRIES)
    [path] = find_models(context, repository, model)
    if (path / "pipeline.toml").is_file():
        # Its imports take a second.
        from fovea_server.cli.joined import JoinedPredictor

        return JoinedPredictor(path.absolute(), options)
    return LocalPredictor(version_folder(path, given.get("version")), options, alone=alone)
