"""Lists the result classes of all tasks, and reads a result from any response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import cv2
import numpy as np
from PIL.Image import DecompressionBombError

from fovea_engines.results.attributes import Attributes
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.reading import ReadText
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidResult

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
"""Task -> class of its results. Raw tensors have no class."""


_DAMAGED = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError),
    *(TypeError, ValueError, cv2.error, DecompressionBombError),
)


def read_result(answer: Mapping[str, Any], vocabulary: Vocabulary) -> TaskResult | None:
    """Read the result for one image from a response.

    The JSON may come from any program: damaged JSON raises no other error than InvalidResult.

    Returns:
        The result. If the response has raw tensors, return None.

    Raises:
        InvalidResult: the response has neither a result nor tensors, or is damaged.
    """
    with reading():
        kind = next((each for each in RESULTS if each.field in answer), None)
        if kind is not None:
            return kind.from_json(answer, vocabulary)
        for each in answer["tensors"]:
            # Check that the fields exist; their values are not used here.
            each["name"], each["datatype"], each["shape"]
    return None


@contextmanager
def reading() -> Iterator[None]:
    """Raise InvalidResult in place of any error that the `with` block raises for damaged JSON."""
    try:
        with np.errstate(over="raise", invalid="raise"):
            yield
    except InvalidResult:
        raise
    except _DAMAGED as error:
        raise InvalidResult(
            f"the result of an image is damaged: predict the image again ({error!r})"
        ) from error
