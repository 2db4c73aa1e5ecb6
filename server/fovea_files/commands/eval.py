"""`fovea eval`: how accurate a model is on labelled images."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fovea_client import FoveaClientError, Prediction, ServerError
from fovea_engines.commands.options import (
    AsJson,
    OverlapOption,
    RepositoryOption,
    ServedModelArgument,
    TileOption,
    UrlOption,
    check_options,
    find_models,
    folder_option,
    model_option,
)
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.evaluate import EVALUATION
from fovea_engines.evaluate.accuracy.labels import check_task, measure
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.accuracy import Accuracy, AnyAccuracy
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, version_folder
from fovea_files.accuracy import measure_answers, read_labels, request_options
from fovea_files.entry import InputImage
from fovea_files.predictors import RemotePredictor
from fovea_preprocess.errors import InvalidRequest, UnsupportedModel
from fovea_preprocess.plural import counted

_CLASSES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The accuracy of one version of a model; backend and precision where they are public."""

    model: str
    version: str
    backend: str | None
    precision: str | None
    accuracy: AnyAccuracy


def evaluate(
    context: typer.Context,
    model: ServedModelArgument,
    data: Annotated[
        Path,
        typer.Option(
            metavar="LABELS",
            help="A COCO .json file, YOLO's data.yaml, a folder of YOLO label files, one with a "
            "folder of images for each class, or one of PNG files with the class of each pixel.",
            exists=True,
        ),
    ],
    images: Annotated[
        Path | None,
        folder_option(help="Folder of the images.", show_default="beside the labels"),
    ] = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    version: Annotated[
        int | None,
        model_option(metavar="N", min=1, help="Version of the model.", show_default="the newest"),
    ] = None,
    tile: TileOption = None,
    overlap: OverlapOption = None,
    as_json: AsJson = False,
) -> None:
    """Measure how accurate a model is on labelled images.

    Mean average precision by COCO's rules, of masks or keypoints too where model and labels have
    them: over all classes, by class, and by size of object
    (small: up to 32 x 32 pixels, large: over 96 x 96). Opens the engine right here, or asks a
    running server, with the same result.

    Rotated boxes are measured with YOLO labels of their corners: class x1 y1 ... x4 y4.
    Keypoints are read from COCO files, and from YOLO labels: class cx cy w h x1 y1 v1 x2 y2 v2 ...
    Of a classifier it is the share of images whose class is the first (top-1), or among the first
    five (top-5).
    Of semantic segmentation it is the overlap of the pixels of each class (mIoU), with a PNG file
    for each image whose levels, or indices, are class ids. A classes.txt beside them names the
    levels from 0 on, a line each; those of an empty line do not count, nor 255 without a name.

    With --tile images are cut as `fovea predict` does it, which finds small objects.
    Classes of the labels and of the model meet by name. Labels are of the upright image, as
    its EXIF orientation shows it.

    Example: fovea eval yolov8n --data val.json --images val2017
    """
    check_options(context, clashes=[("repository", "url")])
    options = replace(
        EVALUATION, tile=tile, overlap=EVALUATION.overlap if overlap is None else overlap
    )
    try:
        if url is None:
            [path] = find_models(context, repository, model)
            report = _here(version_folder(path, version), data, images, options)
        else:
            report = _through(url, model, version, data, images, options)
    except FoveaClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        document = asdict(report)
        figures = document.pop("accuracy")
        sys.stdout.write(json.dumps(document | figures, indent=2) + "\n")
    else:
        _show(report)


def _here(folder: Path, data: Path, images: Path | None, options: PredictOptions) -> EvalReport:
    labelled = read_labels(data, images)
    with Engine.open(folder) as engine:
        card = engine.card
        if engine.head is None:
            raise UnsupportedModel(
                f"{card.name} serves tensors only, so there is nothing to measure: {card.reason}"
            )
        check_task(labelled, card.task)
        dataset = labelled.for_model(engine.labels, engine.num_classes)
        accuracy = measure(engine, dataset, ConsoleProgress(), engine.resolve(options))
    return EvalReport(folder.parent.name, folder.name, card.backend, card.precision, accuracy)


def _through(
    url: str,
    model: str,
    version: int | None,
    data: Path,
    images: Path | None,
    options: PredictOptions,
) -> EvalReport:
    labelled = read_labels(data, images)
    given = request_options(labelled, options) | {"version": version}
    # A server that others use as well may be full for a moment.
    with RemotePredictor(url, model, given, retries=3) as remote:
        answered = ""
        known = None if isinstance(labelled, Dataset) else remote.model(version)
        if not isinstance(labelled, Dataset) and known is not None and known.labels is not None:
            if known.task is not None:
                check_task(labelled, known.task)
            labelled.for_model(known.labels)

        def ask(path: Path) -> Prediction:
            nonlocal answered
            try:
                prediction = remote.predict(InputImage(path.read_bytes()))
            except ServerError as error:
                if not error.of_one_image:
                    raise
                raise InvalidRequest(f"{path}: {error.message}") from error
            answered = prediction.version
            return prediction

        accuracy = measure_answers(labelled, ask, ConsoleProgress())
        own = remote.model(answered)
        engine = (own.backend, own.precision) if own is not None else (None, None)
        return EvalReport(model, answered, *engine, accuracy)


def _show(report: EvalReport) -> None:
    console, accuracy = Console(), report.accuracy
    engine = f", {report.backend} {report.precision}" if report.backend else ""
    images = counted(accuracy.images, "image")
    title = f"{report.model} version {report.version}{engine}: {images}"
    if isinstance(accuracy, Accuracy):
        title += f", measured by the overlap of {accuracy.compared}"
    console.print(Text(title, style="bold"))
    totals = Table(show_header=False)
    for label, value in accuracy.rows.items():
        totals.add_row(label, "none in the labels" if value is None else f"{value:.3f}")
    console.print(totals)
    worst_first = sorted(accuracy.per_class.items(), key=lambda item: item[1])
    all_shown = len(worst_first) <= _CLASSES_SHOWN
    figure = accuracy.metric.split()[-1].removeprefix("m")
    classes = Table("class" if all_shown else "weakest classes", figure)
    for name, value in worst_first[:_CLASSES_SHOWN]:
        classes.add_row(Text(name), f"{value:.3f}")
    console.print(classes)
    if (better := len(worst_first) - _CLASSES_SHOWN) > 0:
        console.print(
            f"and {counted(better, 'better class')}: --json has them all", highlight=False
        )
