"""`fovea eval`: how accurate a model is on labelled images."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fovea_client
from fovea_client import FoveaClientError, ImageResult, ServerError
from fovea_engines.commands.options import (
    RepositoryOption,
    ServedModelArgument,
    UrlOption,
    check_options,
    find_models,
    folder_option,
)
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.mask_encoding import RunLengths
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.answer import Answer
from fovea_engines.evaluate.accuracy.class_folders import (
    FIRST,
    ClassFolders,
    check_task,
    classify_with,
    measure_classes,
    read_labelled,
)
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.evaluate import EVALUATION, detect_all, in_process, mean_ap
from fovea_engines.evaluate.accuracy.evaluate import evaluate as measure
from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage
from fovea_engines.plural import counted
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, version_folder
from fovea_preprocess.errors import InvalidOption, InvalidRequest, UnsupportedModel
from fovea_server.bench.accuracy import labels_by_id
from fovea_server.commands.predictors import ERRORS_OF_ONE_IMAGE, RemotePredictor

_CLASSES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Report:
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
            help="A COCO .json file, a folder of YOLO label files, or one with a folder of images "
            "for each class.",
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
        typer.Option(metavar="N", min=1, help="Version of the model.", show_default="the newest"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document with every class.")
    ] = False,
) -> None:
    """Measure how accurate a model is on labelled images.

    Mean average precision by COCO's rules, of masks or keypoints too where model and labels have
    them: over all classes, by class, and by size of object
    (small: up to 32 x 32 pixels, large: over 96 x 96). Opens the engine right here, or asks a
    running server, with the same result.

    Rotated boxes are measured with YOLO labels of their corners: class x1 y1 ... x4 y4.
    Of a classifier it is the share of images whose class is the first (top-1), or among the first
    five (top-5).

    Classes of the labels and of the model meet by name. Labels are of the upright image, as
    its EXIF orientation shows it.

    Example: fovea eval yolov8n --data val.json --images val2017
    """
    check_options(context, clashes=[("repository", "url")])
    try:
        if url is None:
            [path] = find_models(context, repository, model)
            report = _here(version_folder(path, version), data, images)
        else:
            report = _through(url, model, version, data, images)
    except FoveaClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        document = asdict(report)
        figures = document.pop("accuracy")
        sys.stdout.write(json.dumps(document | figures, indent=2) + "\n")
    else:
        _show(report)


def _here(folder: Path, data: Path, images: Path | None) -> Report:
    labelled = _read(data, images)
    with Engine.open(folder) as engine:
        card, detect = engine.card, in_process(engine)
        check_task(labelled, card.task)
        dataset = labelled.for_model(engine.labels, engine.num_classes)
        accuracy: AnyAccuracy
        if isinstance(dataset, ClassFolders):
            accuracy = measure_classes(classify_with(engine), dataset, ConsoleProgress())
        else:
            accuracy = measure(detect, dataset, ConsoleProgress())
    return Report(folder.parent.name, folder.name, card.backend, card.precision, accuracy)


def _through(url: str, model: str, version: int | None, data: Path, images: Path | None) -> Report:
    with RemoteDetector(url, model, version, EVALUATION) as detector:
        dataset = _read(data, images)
        if isinstance(dataset, ClassFolders):
            classes = measure_classes(detector.classify, dataset, ConsoleProgress())
            return Report(model, detector.version or "", *detector.engine(), classes)
        found = detect_all(detector, dataset, ConsoleProgress())
        backend, precision = detector.engine()
    accuracy = mean_ap(dataset.for_model(detector.labels_for(dataset)), found)
    return Report(model, detector.version or "", backend, precision, accuracy)


def _read(data: Path, images: Path | None) -> Dataset | ClassFolders:
    labelled = read_labelled(data, images)
    if isinstance(labelled, ClassFolders) and images is not None:
        raise InvalidOption(f"{data} has the images in its folders: leave --images out")
    return labelled


class RemoteDetector(RemotePredictor):
    """Finds what is on labelled images with a server.

    Labels and version are collected from its answers: its metadata may be secret.

    Attributes:
        version: of the model that answered; None before the first answer.
        labels: class names by id, of the classes that were answered so far; empty for a model
            without labels, whose classes are called by their number.
    """

    def __init__(self, url: str, model: str, version: int | None, options: PredictOptions) -> None:
        given = {
            "version": version,
            "conf": options.conf,
            "iou": options.iou,
            "max_det": options.max_det,
        }
        # A server that others use as well may be full for a moment.
        super().__init__(url, model, given, retries=3)
        self.version: str | None = None
        self.labels: dict[int, str] = {}

    def __call__(self, image: LabelledImage) -> Answer:
        """Ask for the detections in an image.

        Raises:
            InvalidRequest: the server cannot read the image, which is named.
            UnsupportedModel: it answers with tensors.
        """
        answer = self._answer(image.path, image.data(), classes=False)
        image.check_size(answer.width, answer.height)
        found = answer.detections
        named = {d.class_id: d.class_name for d in found if d.class_name != str(d.class_id)}
        self.labels.update(named)
        corners = [(d.box.x1, d.box.y1, d.box.x2, d.box.y2) for d in found]
        rotated = [tuple(asdict(d.rotated).values()) for d in found if d.rotated is not None]
        points = [[(point.x, point.y, point.score) for point in d.keypoints] for d in found]
        objects = Detections(
            boxes=np.array(corners, np.float32).reshape(-1, 4),
            scores=np.array([d.score for d in found], np.float32),
            class_ids=np.array([d.class_id for d in found], np.int32),
            rotated=np.array(rotated, np.float32) if rotated else None,
            keypoints=np.array(points, np.float32) if any(points) else None,
        )
        return Answer.with_masks(objects, [_run_lengths(d.mask) for d in found])

    def classify(self, path: Path) -> list[str]:
        """Return the names of an image's first classes; raises as a call does."""
        found = self._answer(path, path.read_bytes(), classes=True).classes
        return [each.class_name for each in found[:FIRST]]

    def _answer(self, path: Path, data: bytes, *, classes: bool) -> ImageResult:
        try:
            prediction = self.predict(data)
        except ServerError as error:
            if error.code not in ERRORS_OF_ONE_IMAGE:
                raise
            raise InvalidRequest(f"{path}: {error.message}") from error
        answer = prediction.image
        if answer.tensors:
            raise UnsupportedModel(
                f"{self._model} serves tensors only, so there is nothing to measure"
            )
        if classes != (prediction.task == "classify"):
            wanted = "a classifier" if classes else "boxes"
            raise UnsupportedModel(
                f"the labels are for {wanted}, and the task of {self._model} is {prediction.task}"
            )
        self.version = prediction.version
        return answer

    def engine(self) -> tuple[str | None, str | None]:
        """Read backend and precision of the version that answered; None where they are secret."""
        try:
            model = self._client.model(self._model, self.version)
        except FoveaClientError:
            return None, None
        return model.backend, model.precision

    def labels_for(self, dataset: Dataset) -> list[str | None] | None:
        """Return the class names by id, as `labels_by_id` does."""
        return labels_by_id(self.labels, dataset)


def _run_lengths(mask: object) -> RunLengths | None:
    if not isinstance(mask, fovea_client.RunLengths):
        return None
    return {"size": list(mask.size), "counts": mask.counts}


def _show(report: Report) -> None:
    console, accuracy = Console(), report.accuracy
    engine = f", {report.backend} {report.precision}" if report.backend else ""
    images = counted(accuracy.images, "image")
    title = f"{report.model} version {report.version}{engine}: {images}"
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
