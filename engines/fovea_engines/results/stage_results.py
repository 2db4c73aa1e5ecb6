"""Defines results of a pipeline's later stages for each object, and converts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from fovea_engines.results.attributes import Attributes
from fovea_engines.results.classes import Classes
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.reading import ReadText
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import NO_NAMES, Vocabulary, read_vocabulary
from fovea_engines.session import Array, TensorSpec

FAILED: Final = "failed"
"""Caption of an object if a stage failed for it."""


@dataclass(frozen=True, slots=True, eq=False)
class StageResult:
    """The result of one pipeline stage for the crop of one object.

    Attributes:
        stage: name of the stage. Empty if the result was read from a response, because responses do
            not contain names of stages.
        field: name of the field in the JSON of the object that holds the result.
        found: the result; None if the stage failed.
        vocabulary: names of the classes and keypoints of the stage's model.
        caption: a few words for drawings; may be empty.
        error: code and message if the stage failed, otherwise None.
    """

    stage: str
    field: str
    found: TaskResult | None = None
    vocabulary: Vocabulary = NO_NAMES
    caption: str = ""
    error: tuple[str, str] | None = None


STAGE_RESULTS: Final = TensorSpec("findings", "object", (-1, -1))
"""Spec of the tensor that `stage_results_tensor` returns. Version 0.1 gave it its name."""


def stage_results_json(results: Iterable[StageResult], options: PredictOptions) -> dict[str, Any]:
    """Return the fields that the stage results add to the JSON of an object."""
    answer: dict[str, Any] = {}
    for each in results:
        _add(answer, each, options)
    return answer


def _add(answer: dict[str, Any], result: StageResult, options: PredictOptions) -> None:
    vocabulary = result.vocabulary
    match result.found:
        case Attributes() as found:
            answer.setdefault("attributes", []).extend(
                found.to_json(vocabulary, options)["attributes"]
            )
        case Classes() as found if result.field == "attributes":
            classes = found.to_json(vocabulary, options)["classes"]
            attribute = {"name": result.stage, "exclusive": True, "classes": classes}
            answer.setdefault("attributes", []).append(attribute)
        case ReadText() as found:
            answer["text"] = found.to_json(vocabulary, options)["reading"]
        case TaskResult() as found:
            answer |= found.to_json(vocabulary, options)
    if result.error is not None:
        code, message = result.error
        answer.setdefault("error", {"code": code, "message": message})


def read_stage_results(answer: Mapping[str, Any]) -> Iterator[StageResult]:
    """Yield the stage results in the JSON of an object. `TaskResult.from_json` lists the errors."""
    for name, value in answer.items():
        match name:
            case "attributes":
                # Each attribute becomes its own result, because attributes may come from different
                # models with different labels.
                for each in value:
                    yield _read(name, Attributes, [each])
            case "classes":
                yield _read(name, Classes, value)
            case "embedding":
                yield _read(name, Embedding, value)
            case "text":
                yield _read(name, ReadText, value)
            case "error":
                error = str(value["code"]), str(value["message"])
                yield StageResult("", name, caption=FAILED, error=error)


def _read(name: str, kind: type[TaskResult], value: object) -> StageResult:
    vocabulary = read_vocabulary(value)
    found = kind.from_json({kind.field: value}, vocabulary)
    return StageResult("", name, found, vocabulary, found.caption(vocabulary.labels))


def stage_results_tensor(
    found: Sequence[Sequence[Sequence[StageResult]]], options: PredictOptions
) -> Array:
    """Return texts [n, k] for k objects in each of n images.

    Each text is JSON with the fields that the stage results add to the object. Empty texts are
    padding.
    """
    texts = np.full((len(found), max(map(len, found))), b"", object)
    for row, objects in zip(texts, found, strict=True):
        for column, results in enumerate(objects):
            row[column] = orjson.dumps(stage_results_json(results, options))
    return texts
