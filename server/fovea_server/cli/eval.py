"""`fovea eval`: measures the accuracy of a model on labelled images."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fovea_client import FoveaClientError, ServerError
from fovea_engines.engine import Engine
from fovea_engines.evaluation.class_folders import ClassFolders
from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.evaluate import EVALUATION
from fovea_engines.evaluation.labels import Labels, check_task
from fovea_engines.progress import ConsoleProgress, Progress
from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, InvalidRequest, InvalidResult, UnsupportedModel
from fovea_server.cli.eval_tables import EvalReport, show
from fovea_server.cli.options import (
    AllowCodeOption,
    AsJson,
    PlotOption,
    RepositoryOption,
    ServedModelArgument,
    UrlOption,
    VersionOption,
    check_options,
    check_plot,
    find_models,
    folder_option,
    is_typed,
)
from fovea_server.cli.request_options import read_options, with_request_options
from fovea_server.models.model_folder import version_folder
from fovea_server.offline.accuracy import (
    measure_answers,
    measure_engine,
    read_labels,
    request_options,
)
from fovea_server.offline.chosen import LabelSelection, choose
from fovea_server.offline.confusion_chart import draw
from fovea_server.offline.entry import InputImage
from fovea_server.offline.predictors import ImagePrediction, RemotePredictor


@with_request_options("tile", "overlap")
def evaluate(
    context: typer.Context,
    model: ServedModelArgument,
    data: Annotated[
        Path,
        typer.Option(
            metavar="LABELS",
            help=(
                "Labels of the images: a COCO .json file, a YOLO data.yaml or folder of YOLO "
                "label files, a folder with one subfolder of images per class, a folder of PNG "
                "class maps, a CSV file of texts or attributes, or a folder of target images."
            ),
            exists=True,
        ),
    ],
    images: Annotated[
        Path | None,
        folder_option(help="Folder of the labelled images.", show_default="beside the labels"),
    ] = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    version: VersionOption = None,
    allow_code: AllowCodeOption = False,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help=(
                "Names of the classes to measure, separated by commas. The other classes of the "
                "labels are ignored."
            ),
            show_default="all of the labels",
        ),
    ] = None,
    conf: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1,
            help=(
                "Lowest score of the objects that count for precision, recall and the confusion "
                "matrix."
            ),
            show_default="the score with the highest mean F1",
        ),
    ] = None,
    *,
    plot: PlotOption = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Measure the accuracy of a model on labelled images.

    The command opens the engine in this process, or uses a running server (--url); both have the
    same results. With --tile, images are cut into tiles as in `fovea predict`, to find small
    objects.

    Objects: mean average precision by COCO's rules, over all classes, by class, and by size of
    object (small: up to 32 x 32 pixels, large: over 96 x 96). Masks and keypoints are also measured
    if the model and the labels have them. Precision, recall and the confusion matrix count objects
    that overlap by half or more, at one confidence for all classes. --plot draws the matrix.
    Rotated boxes need YOLO labels of their corners: class x1 y1 ... x4 y4. Keypoints are read from
    COCO files, and from YOLO labels: class cx cy w h x1 y1 v1 x2 y2 v2 ...

    Classes: the share of images whose class is the first one (top-1), or among the first five
    (top-5).

    Embeddings, with a folder for each person or thing: the share of images whose best match among
    all other images, or one of the best five, is from the same folder (recall@1, recall@5).

    Semantic segmentation: the overlap of the pixels of each class (mIoU). Labels are a PNG file for
    each image whose levels, or indices, are class ids. A classes.txt beside them names the levels
    from 0 on, one per line. A level with an empty line does not count, nor does 255 without a name.

    Texts, in PaddleOCR's lines (path, tab, text) or a CSV file (image,text): the share of texts
    without a wrong character, and the edit distance of the other texts.

    Attributes, in a CSV file with a column for the image and one for each attribute (or for each
    class, 1 or 0): the share of images for which each attribute is right.

    Generated images: the similarity to the target images (SSIM of Wang et al. 2004, and PSNR, in
    RGB). Targets are colour files, or JPEG, with the names of the --images.

    Classes of labels and model are matched by name. If the labels have classes that the model does
    not have, choose the classes to measure with --classes. Labels refer to the upright image, after
    its EXIF orientation.

    Example: fovea eval yolov8n --data val.json --images val2017

    Example: fovea eval yolov8n --data data.yaml --classes person,car --plot confusion.svg
    """
    check_options(context, clashes=[("repository", "url"), ("allow_code", "url")])
    check_plot(plot)
    # The model is looked up before the labels are read, because reading labels may take long.
    if url is None:
        [path] = find_models(context, repository, model)
        measure = partial(_evaluate_locally, version_folder(path, version), allow_code)
    else:
        measure = partial(_evaluate_server, url, model, version)
    labelled = _labels(context, data, images)
    usual = EVALUATION if isinstance(labelled, Dataset) else PredictOptions()
    options = replace(usual, **read_options(given))
    try:
        report = measure(labelled, classes, conf, options)
    except FoveaClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if plot is not None and report.confusion is not None:
        plot.write_text(draw(report.title, report.confusion), "utf-8")
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        show(report)


def _labels(context: typer.Context, data: Path, images: Path | None) -> Labels:
    """Read labels; raise InvalidOption for a typed option that has no effect on these labels."""
    labelled = read_labels(data, images)
    if is_typed(context, "conf") and not isinstance(labelled, Dataset):
        raise InvalidOption(
            f"--conf has no effect, because {labelled.path} has no labels of objects: leave "
            "--conf out"
        )
    if is_typed(context, "plot") and not isinstance(labelled, Dataset | ClassFolders):
        raise InvalidOption("--plot needs labels of objects or of whole images: leave --plot out")
    return labelled


def _evaluate_locally(
    folder: Path,
    allow_code: bool,
    labelled: Labels,
    classes: str | None,
    conf: float | None,
    options: PredictOptions,
) -> EvalReport:
    progress = ConsoleProgress()
    with Engine.open(folder, allow_code=allow_code) as engine:
        card = engine.card
        if engine.head is None:
            raise UnsupportedModel(
                f"{card.name} returns tensors only, so its accuracy cannot be measured: "
                f"{card.reason}"
            )
        check_task(labelled, card.task)
        chosen = choose(labelled, classes, engine.labels, engine.num_classes)
        _report_left_out(chosen, progress)
        dataset = chosen.labelled.match_classes(engine.labels, engine.num_classes)
        measured = measure_engine(engine, dataset, progress, engine.resolve(options))
    built = card.backend, card.precision
    confusion = measured.confusion(conf, others=classes is None)
    return EvalReport(
        folder.parent.name, folder.name, *built, measured.accuracy, chosen, confusion, conf is None
    )


def _evaluate_server(
    url: str,
    model: str,
    version: int | None,
    labelled: Labels,
    classes: str | None,
    conf: float | None,
    options: PredictOptions,
) -> EvalReport:
    progress = ConsoleProgress()
    given = request_options(labelled, options) | {"version": version}
    # A server with other clients may have a full queue for a moment, so requests are retried.
    with RemotePredictor(url, model, given, retries=3) as remote:
        answered = ""
        known = remote.model(version)
        labels = None if known is None else known.labels
        if known is not None and known.task not in (None, "tensors"):
            check_task(labelled, known.task)
        chosen = choose(labelled, classes, labels)
        dataset = chosen.labelled if labels is None else chosen.labelled.match_classes(labels)
        _report_left_out(chosen, progress)

        def ask(path: Path) -> ImagePrediction:
            nonlocal answered
            try:
                prediction = remote.predict(InputImage(path.read_bytes()))
            except ServerError as error:
                if not error.of_one_image:
                    raise
                raise InvalidRequest(f"{path}: {error.message}") from error
            except InvalidResult as error:
                raise error.with_text(f"{path}: {error}") from error
            answered = prediction.version
            return prediction

        measured = measure_answers(dataset, ask, progress)
        own = remote.model(answered)
        built = (own.backend, own.precision) if own is not None else (None, None)
    confusion = measured.confusion(conf, others=classes is None)
    return EvalReport(model, answered, *built, measured.accuracy, chosen, confusion, conf is None)


def _report_left_out(chosen: LabelSelection, progress: Progress) -> None:
    if chosen.note:
        progress.note(chosen.note)
