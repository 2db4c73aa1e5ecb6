"""Lists the results of all tasks, and reads the answer for an image into the one that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fovea_engines.results.attributes import Attributes
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.reading import ReadText
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary

RESULTS: Final[tuple[type[TaskResult], ...]] = (
    Detections,
    Classes,
    ClassMap,
    SoftMask,
    DepthMap,
    Embedding,
    ReadText,
    NewImage,
    Attributes,
)

RESULT_OF: Final[Mapping[str, type[TaskResult]]] = {
    task: kind for kind in RESULTS for task in kind.tasks
}
"""The result of each task that a head decodes."""


def read_result(answer: Mapping[str, Any], words: Vocabulary) -> TaskResult | None:
    """Read the answer for an image; None where it has raw tensors.

    Raises as `TaskResult.from_json`.
    """
    kind = next((each for each in RESULTS if each.field in answer), None)
    return None if kind is None else kind.from_json(answer, words)
