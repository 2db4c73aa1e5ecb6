"""Measures the accuracy of an engine's or a server's results on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

import fovea_client
from fovea_engines.engine import Engine
from fovea_engines.evaluation.class_folders import (
    FIRST,
    ClassFolders,
    Classify,
    Embed,
    classify_with,
    embed_with,
    measure_classes,
    measure_matches,
)
from fovea_engines.evaluation.class_maps import ClassMaps, FoundMap, measure_maps
from fovea_engines.evaluation.dataset import Dataset, LabelledImage
from fovea_engines.evaluation.evaluate import EVALUATION, CompactDetections, detect_all, detect_with
from fovea_engines.evaluation.label_tables import AttributeLabels, Judged, TextLabels
from fovea_engines.evaluation.labels import Labels, check_task, measure, read_labelled
from fovea_engines.evaluation.mean_ap import mean_ap
from fovea_engines.evaluation.pictures import PicturePairs
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.results.attributes import Attributes
from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.maps import ClassMap
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import MAX_TOP_K, PredictOptions
from fovea_engines.results.reading import ReadText
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.errors import InvalidOption, InvalidResult, UnsupportedModel
from fovea_server.offline.confusion import Confusion, image_confusion, object_confusion
from fovea_server.offline.entry import Result
from fovea_server.offline.predictors import ImagePrediction

_SHOWN = 8

Found = TypeVar("Found", bound=TaskResult)

Ask = Callable[[Path], ImagePrediction]
"""Returns a server's response for an image; the request has the options of `request_options`."""

Answer = Callable[[Path], Result]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredAnswers:
    """An accuracy, and the results from which it was measured.

    Attributes:
        accuracy: the accuracy, in the measures of the task.
        dataset: the labels, for tasks that find objects; None for other tasks.
        answers: detections for each image of `dataset`; empty for other tasks.
        pairs: for each image, its labelled class, and the class with the highest score or of the
            best match; empty for tasks without one class per image.
    """

    accuracy: AnyAccuracy
    dataset: Dataset | None = None
    answers: Sequence[CompactDetections] = ()
    pairs: Sequence[tuple[str, str]] = ()

    def confusion(self, conf: float | None = None, *, others: bool = True) -> Confusion | None:
        """Return the confusion matrix, see `object_confusion`.

        Return None if the task has no confusion matrix.
        """
        if self.dataset is not None:
            return object_confusion(self.dataset, self.answers, conf, others=others)
        return image_confusion(self.pairs) if self.pairs else None


def read_labels(data: Path, images: Path | None) -> Labels:
    """Read labels with `read_labelled`.

    Raises:
        InvalidOption: the labels are directories of images, one for each class, and `images` is
            given.
    """
    labelled = read_labelled(data, images)
    if isinstance(labelled, ClassFolders) and images is not None:
        raise InvalidOption(f"{data} contains its own images: leave --images out")
    return labelled


def request_options(
    labelled: Labels, options: PredictOptions = EVALUATION
) -> dict[str, float | str]:
    """Return the options for requests whose responses are measured."""
    given: dict[str, float | str] = {}
    if isinstance(labelled, ClassMaps):
        given = {"mask": "png"}
    elif isinstance(labelled, AttributeLabels):
        given = {"top_k": MAX_TOP_K}
    elif isinstance(labelled, Dataset):
        given = {name: getattr(options, name) for name in ("conf", "iou", "max_det")}
    if options.tile is not None:
        given |= {"tile": options.tile, "overlap": options.overlap}
    return given


def answered_accuracy(answers: Mapping[int, bytes], labelled: Labels) -> AnyAccuracy | None:
    """Measure the accuracy of response bodies; images without a response are left out.

    Args:
        answers: body of each response, by the index of its image in `labelled.paths`.
        labelled: labels of the images.

    Returns:
        The accuracy; None if no image has a response.

    Raises:
        UnsupportedModel, InvalidOption: see `measure_answers`.
    """
    bodies = {labelled.paths[number]: body for number, body in answers.items()}

    def ask(path: Path) -> ImagePrediction:
        return ImagePrediction.of(
            fovea_client.prediction(httpx.Response(200, content=bodies[path]))
        )

    return measure_answers(labelled.keep_images(bodies), ask).accuracy if bodies else None


def measure_engine(
    engine: Engine, labelled: Labels, progress: Progress, options: PredictOptions = EVALUATION
) -> MeasuredAnswers:
    """Measure an engine on labelled images.

    Args:
        engine: the engine; it has the classes of the labels.
        labelled: labels of the images.
        progress: reports the progress.
        options: options for engines that find objects.
    """
    match labelled:
        case ClassFolders() if engine.card.task == "embed":
            return _measure_matches(embed_with(engine), labelled, progress)
        case ClassFolders():
            return _measure_images(classify_with(engine), labelled, progress)
        case Dataset():
            answers = detect_all(detect_with(engine, options), labelled, progress)
            return MeasuredAnswers(mean_ap(labelled, answers), labelled, answers)
        case _:
            return MeasuredAnswers(measure(engine, labelled, progress))


def measure_answers(
    labelled: Labels, ask: Ask, progress: Progress | None = None
) -> MeasuredAnswers:
    """Send every labelled image to a server, and measure the accuracy of its responses.

    Class names are taken from the responses, because the model's metadata may be secret.

    Args:
        labelled: labels of the images.
        ask: returns the server's response for an image.
        progress: reports the progress.

    Raises:
        UnsupportedModel: the model serves tensors.
        InvalidOption: the labels are for another task, an image and its label differ in size, or
            the model lacks classes of the labels. For objects, the model must have every class of
            the labels. For class directories and class maps, one shared class is enough, because a
            response names only a few classes.
    """
    task, again = _ask_first(labelled, ask)

    def answer(path: Path) -> Result:
        prediction = again(path)
        check_answer(labelled, prediction.model, prediction.task)
        return prediction.result

    match labelled:
        case ClassFolders():
            return _measure_folders(task, answer, labelled, progress)
        case ClassMaps():
            return _measure_maps(answer, labelled, progress)
        case TextLabels():
            return MeasuredAnswers(labelled.measure(lambda path: _text(answer(path)), progress))
        case AttributeLabels():
            return MeasuredAnswers(labelled.measure(lambda path: _judge(answer(path)), progress))
        case PicturePairs():
            return MeasuredAnswers(labelled.measure(lambda path: _levels(answer(path)), progress))
        case Dataset():
            return _measure_objects(answer, labelled, progress)


def _measure_maps(
    answer: Answer, labelled: ClassMaps, progress: Progress | None
) -> MeasuredAnswers:
    """Measure the accuracy of class maps from a server."""
    heard: set[str] = set()

    def segment(path: Path) -> FoundMap:
        result = answer(path)
        found, labels = _get_found(ClassMap, result), result.vocabulary.labels
        own = {each.class_id: class_name(labels, each.class_id) for each in found.areas}
        heard.update(own.values())
        return FoundMap(found.pixels(), own)

    return _check_known(labelled, MeasuredAnswers(measure_maps(segment, labelled, progress)), heard)


def _measure_objects(
    answer: Answer, labelled: Dataset, progress: Progress | None
) -> MeasuredAnswers:
    """Measure the accuracy of detections from a server."""
    names: dict[int, str] = {}

    def detect(image: LabelledImage) -> CompactDetections:
        result = answer(image.path)
        image.check_size(*result.size)
        found = _get_found(Detections, result)
        for class_id in set(found.class_ids.tolist()):
            if (name := class_name(result.vocabulary.labels, class_id)) != str(class_id):
                names[class_id] = name
        return CompactDetections.of(found)

    answers = detect_all(detect, labelled, progress or Progress())
    dataset = labelled.match_classes(_labels_by_id(names, labelled))
    return MeasuredAnswers(mean_ap(dataset, answers), dataset, answers)


def _measure_folders(
    task: str,
    answer: Answer,
    labelled: ClassFolders,
    progress: Progress | None,
) -> MeasuredAnswers:
    """Measure the accuracy of embeddings or classes from a server."""
    if task == "embed":
        return _measure_matches(
            lambda path: _get_found(Embedding, answer(path)).vector, labelled, progress
        )
    heard: set[str] = set()

    def classify(path: Path) -> list[str]:
        result = answer(path)
        ids = _get_found(Classes, result).class_ids[:FIRST].tolist()
        found = [class_name(result.vocabulary.labels, each) for each in ids]
        heard.update(found)
        return found

    return _check_known(labelled, _measure_images(classify, labelled, progress), heard)


def _measure_images(
    classify: Classify, labelled: ClassFolders, progress: Progress | None = None
) -> MeasuredAnswers:
    """Measure the accuracy of a classifier, and store the best class of each image."""
    pairs: list[tuple[str, str]] = []

    def kept(image: Path) -> Sequence[str]:
        names = classify(image)
        pairs.append((image.parent.name, next(iter(names), "nothing")))
        return names

    return MeasuredAnswers(measure_classes(kept, labelled, progress), pairs=pairs)


def _ask_first(labelled: Labels, ask: Ask) -> tuple[str, Ask]:
    """Send the first image.

    Return the task of the model, and a function like `ask` that has this response already.
    """
    first = labelled.paths[0]
    known = {first: ask(first)}
    return known[first].task, lambda path: known.pop(path, None) or ask(path)


def _get_found(kind: type[Found], result: Result) -> Found:
    """Return the typed result; raise InvalidResult if the result is of another type."""
    if not isinstance(result.found, kind):
        raise InvalidResult(
            f"the response has no {kind.field}: check that the URL is a Fovea server"
        )
    return result.found


def _levels(result: Result) -> NDArray[np.uint8]:
    """Return the pixels of a generated image, uint8 [h, w, 3], or [h, w] with one channel."""
    levels = _get_found(NewImage, result).levels
    return levels if levels.shape[2] == 3 else levels[..., 0]


def _text(result: Result) -> str:
    return _get_found(ReadText, result).caption(result.vocabulary.labels)


def _judge(result: Result) -> dict[str, Judged]:
    def names(class_ids: Sequence[int]) -> frozenset[str]:
        return frozenset(class_name(result.vocabulary.labels, each) for each in class_ids)

    return {
        each.name: Judged(names(each.class_ids.tolist()), names(each.likely))
        for each in _get_found(Attributes, result).found
    }


def _measure_matches(
    embed: Embed, labelled: ClassFolders, progress: Progress | None = None
) -> MeasuredAnswers:
    """Measure the accuracy of embeddings, and store the class of each image's best match."""
    accuracy, pairs = measure_matches(embed, labelled, progress)
    return MeasuredAnswers(accuracy, pairs=pairs)


def _check_known(labelled: Labels, measured: MeasuredAnswers, heard: set[str]) -> MeasuredAnswers:
    """Return `measured`; raise InvalidOption if no response contained a class of the labels."""
    numbered = isinstance(labelled, ClassMaps) and labelled.names is None
    if not numbered and heard.isdisjoint(measured.accuracy.per_class):
        raise InvalidOption(
            f"the model returned none of the classes in {labelled.path}, but "
            f"{', '.join(sorted(heard)[:_SHOWN])}: use the model's class names in the labels"
        )
    return measured


def check_answer(labelled: Labels, model: str, task: str) -> None:
    """Raise an error if the model serves tensors, or if the labels are for another task."""
    if task == "tensors":
        raise UnsupportedModel(f"{model} returns tensors only, so its accuracy cannot be measured")
    check_task(labelled, task)


def _labels_by_id(names: Mapping[int, str], dataset: Dataset) -> list[str | None] | None:
    """Return class names in the order of class ids; None if `names` is empty.

    The name of a class that no response contained is None. The list has at least one entry for each
    class of the dataset.
    """
    if not names:
        return None
    count = max(len(dataset.class_names or ()), *(number + 1 for number in names))
    return [names.get(class_id) for class_id in range(count)]
