"""Builds a verified engine from an ONNX file, and publishes it in a repository."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np

from fovea_engines.backends.backend import CompilePlan
from fovea_engines.build.acceptance import rejection
from fovea_engines.build.choose import open_chosen
from fovea_engines.build.graphs import save
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.open_question import check_head_decided
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.build.prepare import PreparedModel, prepare
from fovea_engines.build.prompts import split_texts
from fovea_engines.build.report import write_report
from fovea_engines.engine import Engine
from fovea_engines.evaluation.dataset import read_class_names
from fovea_engines.evaluation.labels import Labels, check_task, images_text, read_labelled
from fovea_engines.evaluation.samples import MAX_IMAGES, image_files, images_sha256
from fovea_engines.heads.base import Detector
from fovea_engines.heads.head_file import head_in_file
from fovea_engines.progress import Progress
from fovea_engines.repository.baseline import Baseline, Found, select_values
from fovea_engines.repository.card import CARD_FILE, HEAD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, config_text
from fovea_engines.repository.files import file_sha256, write_file
from fovea_engines.repository.history import HISTORY_FILE, append_event, open_history
from fovea_engines.repository.labels import LABELS_FILE, labels_text
from fovea_engines.repository.repository import FAILED_FOLDER, ModelRepository
from fovea_preprocess.errors import (
    BuildError,
    Disagreement,
    FoveaError,
    InvalidModel,
    InvalidOption,
    NotFound,
)
from fovea_preprocess.image import brightness, decode_image

# Largest and smallest number of images for a baseline. With fewer images, most differences between
# distributions are chance. With more images, the measured distances hardly change.
_MAX, _MIN = 256, 50
# Accuracy on n labelled images changes by chance by about this number divided by the root of n: 250
# images can show a drop of .01.
_CHANCE = 0.158

CheckServable = Callable[[Path, int], None]
"""Function that checks that a server can load a version.

The arguments are the model directory and the version number. The function raises InvalidModel if a
server cannot load the version.
"""


def measure_baseline(
    plan: BuildPlan, engine: Engine, labelled: Labels | None, progress: Progress
) -> Baseline | None:
    """Run an engine on images, and return the distributions of its results for drift detection.

    The images are the labelled images. Without labelled images, they are the check images of the
    plan.

    Returns:
        The baseline. If there are too few images, or the engine has no head, None.
    """
    files, source = _files(plan, labelled)
    if engine.head is None or len(files) < _MIN:
        return None
    chosen = np.linspace(0, len(files) - 1, min(len(files), _MAX)).round().astype(int)
    found: list[Found] = []
    bright: list[float] = []
    with progress.phase("baseline"):
        for file in progress.each([files[i] for i in chosen.tolist()], len(chosen)):
            data = file.read_bytes()
            try:
                image = decode_image(data)
                result = engine.predict(image.pixels)
            except FoveaError:  # skip unreadable images and NaN results
                continue
            bright.append(brightness(data))
            if (one := select_values(result, image.width * image.height)) is not None:
                found.append(one)
    return Baseline.of(source, found, bright)


def _files(plan: BuildPlan, labelled: Labels | None) -> tuple[Sequence[Path], str]:
    if labelled is not None:
        return labelled.paths, labelled.path.name
    folder = plan.check_images
    return ((), "") if folder is None else (image_files(folder, sys.maxsize), folder.name)


def build(
    plan: BuildPlan, progress: Progress | None = None, check_servable: CheckServable | None = None
) -> EngineCard:
    """Build an engine, compare it with its source, and publish it as the model's next version.

    Args:
        plan: options of the build.
        progress: object that receives the phases and notes.
        check_servable: function that checks that a server can load the version. If the check fails,
            the version is not published.

    Returns:
        The card of the new version. If an earlier version was built from the same model and
        options, nothing is built, and the result is the card of the earlier version.

    Raises:
        BuildError: no engine was built, or the engine was rejected. The repository is unchanged,
            except for the report of a rejected build in ``NAME/failed-build``.
        InvalidOption: the plan does not fit the model.
        NotFound: the source file does not exist.
    """
    progress = progress or Progress()
    repository = ModelRepository(plan.repository)
    try:
        if plan.tokenizer_file is None:
            return _build(plan, {}, repository, progress, check_servable)
        with split_texts(plan, plan.tokenizer_file, progress) as (plan, attachments):
            return _build(plan, attachments, repository, progress, check_servable)
    except OSError as error:
        where = error.filename or plan.repository
        raise BuildError(
            f"{where} cannot be read or written ({error.strerror}): nothing was published; use "
            "files and a --repository that you may read and write"
        ) from error


def _build(
    plan: BuildPlan,
    attachments: Mapping[str, Path],
    repository: ModelRepository,
    progress: Progress,
    check_servable: CheckServable | None,
) -> EngineCard:
    # Check the backend first, because a failure after a calibration would waste minutes.
    plan.runtime.check(CompilePlan(precision=plan.precision, builder=plan.builder))
    labelled = None if plan.data is None else _read_labels(plan, plan.data, progress)
    prepared = prepare(plan, progress)
    check_head_decided(plan, prepared)
    if plan.labels and prepared.head.nameless:
        raise InvalidOption(
            f"--labels has no effect: the model's task is {prepared.head.task}, which has no "
            "classes: leave --labels out"
        )
    dataset = None if labelled is None else _match_labels(labelled, prepared)
    key = _content_key(plan, prepared, dataset)
    known = repository.find(plan.name, key)
    # Do not build if an earlier version had the same inputs. But the option --tensorrt must write
    # its file each time, so it always needs a build.
    if known is not None and plan.tensorrt is None:
        progress.note(
            f"version {known} of {plan.name} has the same model and options: nothing to build"
        )
        return _load_accepted(repository, plan, known)

    before = repository.served_or_none(plan.name)
    with repository.publish(plan.name) as folder:
        card = _fill(plan, attachments, prepared, dataset, key, repository, folder, progress)
        _check_servable(repository, folder, card, check_servable)
    _write_texts(repository, card)
    repository.remove_folder(plan.name, FAILED_FOLDER)
    version = repository.find(plan.name, key)
    card = EngineCard.read(repository.folder(plan.name, version) / CARD_FILE)
    _record(repository, card, before, progress)
    return card


def _content_key(plan: BuildPlan, prepared: PreparedModel, dataset: Labels | None) -> str:
    return plan.content_key(
        prepared.sha256,
        prepared.preprocess,
        prepared.labels,
        prepared.head.family,
        _digest_images(plan, prepared, dataset),
        plan.weight_bits if "int8" in plan.precisions or prepared.quantised else 8,
    )


def _fill(
    plan: BuildPlan,
    attachments: Mapping[str, Path],
    prepared: PreparedModel,
    dataset: Labels | None,
    key: str,
    repository: ModelRepository,
    folder: Path,
    progress: Progress,
) -> EngineCard:
    """Write the engine, its card and its report into the directory of a new version.

    Raises:
        Disagreement: the engine was rejected. The card and report are in the directory for failed
            builds.
    """
    truth = None if dataset is None else LabelledEvaluation(plan, prepared, dataset, progress)
    with open_chosen(plan, prepared, truth, folder, progress) as (chosen, card):
        int8 = chosen.graphs.int8
        files = card.files | _copy_attachments(plan, attachments, folder)
        # Create no baseline from the photographs that ship with Fovea, because they do not
        # represent the images that a server receives.
        if card.refused is None and (dataset or plan.check_images) is not None:
            seen = measure_baseline(plan, chosen.engine, dataset, progress)
            card = replace(card, baseline=seen)
        card = replace(card, content_key=key, files=files, build_seconds=dict(progress.seconds))
        reason = card.refused
        report = folder if reason is None else repository.empty_folder(plan.name, FAILED_FOLDER)
        largest = chosen.engine.largest
        names = None
        # The image in the report shows class names. For a model without class names, the files with
        # labels for detectors contain them; other labels do not.
        if plan.data and largest.labels is None and isinstance(largest.head, Detector):
            names = read_class_names(plan.data)
        write_report(report, card, plan, prepared, largest, int8.ranking if int8 else (), names)
        card.write(report / CARD_FILE)
        if reason is not None:
            raise Disagreement(
                f"{reason}: {_advice(plan, card)}. Nothing was published; {report} has the report"
            )
    if plan.tensorrt is not None and chosen.graphs.exported is not None:
        save(chosen.graphs.exported, plan.tensorrt)
    for file, content in int8.files.items() if int8 else ():
        write_file(folder / file, content)
    return card


def _copy_attachments(
    plan: BuildPlan, attachments: Mapping[str, Path], folder: Path
) -> dict[str, str]:
    """Copy further files of a version into its directory, e.g. a user's head.

    `attachments` maps the name of each file to its path.

    Returns:
        Name of each copied file -> its SHA-256.
    """
    for file, path in attachments.items():
        shutil.copyfile(path, folder / file)
    files = [*attachments]
    if (head := head_in_file(plan.family)) is not None:
        # Write the code that this build imported, even if the file was changed during the build.
        write_file(folder / HEAD_FILE, head.content)
        files.append(HEAD_FILE)
    return {file: file_sha256(folder / file) for file in files}


def _record(
    repository: ModelRepository, card: EngineCard, before: Sequence[int], progress: Progress
) -> None:
    """Record in the history that a build replaced the current version. `fovea rollback` uses this.

    `before` are the versions that a server served before the build.
    """
    served = repository.served_or_none(card.name)
    if not (before and served) or before[-1] == served[-1]:
        return
    version, previous, folder = served[-1], before[-1], repository.root / card.name
    event = {
        # Use the action "promote", because older servers do not support another action for a
        # version that becomes current.
        **{"action": "promote", "built": True, "version": version, "previous": previous},
        **{"who": "fovea build", "why": f"built: {card.backend} {card.precision}"},
    }
    try:
        with open_history(folder) as file:
            append_event(file, folder, event)
    except OSError as error:
        progress.note(
            f"{card.name}/{HISTORY_FILE} could not be written ({error.strerror}): `fovea "
            f"rollback` cannot return to version {previous}; use `fovea promote {card.name} "
            f"{previous}`"
        )


def _load_accepted(repository: ModelRepository, plan: BuildPlan, version: int) -> EngineCard:
    card = EngineCard.read(repository.folder(plan.name, version) / CARD_FILE)
    if reason := rejection(card, plan.max_drop):
        raise Disagreement(
            f"version {version} of {plan.name} would be rejected with today's limits: {reason}"
        )
    return card


def _read_labels(plan: BuildPlan, data: Path, progress: Progress) -> Labels:
    labelled = read_labelled(data, plan.images)
    progress.note(f"accuracy is measured on {images_text(labelled)}")
    if plan.max_drop and plan.precision != "fp32":
        needed = ceil((_CHANCE / plan.max_drop) ** 2)
        if len(labelled.paths) < needed:
            progress.note(
                f"{len(labelled.paths)} labelled images are few for --max-drop "
                f"{plan.max_drop:g}, because accuracy varies more by chance: give {needed} or more"
            )
    return labelled


def _match_labels(labelled: Labels, prepared: PreparedModel) -> Labels:
    if prepared.head.family is None:
        raise InvalidOption(f"--data needs a model with a recognised head: {prepared.head.reason}")
    check_task(labelled, prepared.head.task)
    classes = prepared.head.num_classes or len(prepared.labels or ()) or None
    return labelled.match_classes(prepared.labels, classes)


def _digest_images(
    plan: BuildPlan, prepared: PreparedModel, dataset: Labels | None
) -> list[str | None]:
    calibration = None
    if plan.calibration is not None:
        if plan.calibration.is_file():
            calibration = file_sha256(plan.calibration)
        else:
            calibration = images_sha256(image_files(plan.calibration, MAX_IMAGES))
    images = None
    # Skip `plan.images` if they contain labelled images: the digest of the labels includes these
    # images.
    labelled = () if dataset is None else dataset.paths
    if plan.images is not None and not any(each.is_relative_to(plan.images) for each in labelled):
        images = images_sha256(image_files(plan.images, MAX_IMAGES))
    return [calibration, images, None if dataset is None else dataset.sha256()]


def _advice(plan: BuildPlan, card: EngineCard) -> str:
    if card.calibration is None:
        return "export the model in float32" if card.precision == "int8" else "build it in FP32"
    if plan.keep_float != (AUTO,):
        return "use --exclude-nodes auto, which leaves the blocks that lose most accuracy in float"
    return (
        "give more, and more varied, images to --calibration, check that --preprocess matches the "
        "training, or build with --precision fp16"
    )


def _check_servable(
    repository: ModelRepository, version: Path, card: EngineCard, check: CheckServable | None
) -> None:
    """Check that a server can load a new version, together with the files in its model directory.

    `version` is the hidden directory of the new version, which is not published yet.
    """
    if check is None:
        return
    texts = _make_texts(repository, card, repository.versions(card.name))
    try:
        with repository.preview(card.name, version, texts) as (folder, number):
            check(folder, number)
    except InvalidModel as error:
        config = repository.root / card.name / CONFIG_FILE
        cure = "build with another --backend, and report this bug"
        if CONFIG_FILE not in texts:
            cure = f"correct {config}, or remove it, and the build writes a new one"
        raise BuildError(
            f"a server cannot load the new version: {str(error).rstrip(';. ')}: {cure}. Nothing "
            "was published"
        ) from error


def _write_texts(repository: ModelRepository, card: EngineCard) -> None:
    *before, _ = repository.versions(card.name)
    for file, text in _make_texts(repository, card, before).items():
        repository.write_beside(card.name, file, text)


def _make_texts(
    repository: ModelRepository, card: EngineCard, before: Sequence[int]
) -> dict[str, str]:
    """Return config.pbtxt and labels.txt for a new version, except files that the user has edited.

    `before` are the version numbers before the new one. A file counts as unedited if it equals the
    text that a build wrote for the last version in `before`.

    Returns:
        Name of each file to write -> its text.
    """
    texts, last = {}, None
    if before:
        with suppress(NotFound, InvalidModel):
            last = EngineCard.read(repository.folder(card.name, before[-1]) / CARD_FILE)
    for file, text_of in (
        (CONFIG_FILE, config_text),
        (LABELS_FILE, lambda card: labels_text(card.labels or ())),
    ):
        path = repository.root / card.name / file
        own = None if last is None else text_of(last).encode()
        if (not path.exists() or path.read_bytes() == own) and (text := text_of(card)):
            texts[file] = text
    return texts
