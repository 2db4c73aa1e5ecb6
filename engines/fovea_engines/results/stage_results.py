"""Defines the results of a pipeline's later stages on each object, as JSON and as a tensor."""

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
"""The caption of an object for which a stage failed."""


@dataclass(frozen=True, slots=True, eq=False)
class StageResult:
    """The result of a stage of a pipeline on a crop of an object.

    Attributes:
        stage: its name; empty where it is read from an answer, which does not have it.
        field: of the object, which holds the result in an answer.
        found: None where the stage failed.
        vocabulary: of the stage's model.
        caption: a few words for pictures; empty where there are none.
        error: code and message, where the stage failed.
    """

    stage: str
    field: str
    found: TaskResult | None = None
    vocabulary: Vocabulary = NO_NAMES
    caption: str = ""
    error: tuple[str, str] | None = None


STAGE_RESULTS: Final = TensorSpec("findings", "object", (-1, -1))
"""The tensor of `stage_results_tensor`. Version 0.1 gave it this name."""


def stage_results_json(results: Iterable[StageResult], options: PredictOptions) -> dict[str, Any]:
    """Return the fields that the stage results of an object add to it."""
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
    """Yield the stage results of an object in a response; raises as `TaskResult.from_json`."""
    for name, value in answer.items():
        match name:
            case "attributes":
                # Each may be of another model, with other labels.
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
    """Convert to texts [n, k]: of each object the JSON that /v1 adds to it."""
    texts = np.full((len(found), max(map(len, found))), b"", object)
    for row, objects in zip(texts, found, strict=True):
        for column, results in enumerate(objects):
            row[column] = orjson.dumps(stage_results_json(results, options))
    return texts
