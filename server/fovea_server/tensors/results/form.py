"""Defines how the results of a task are written: as JSON, and as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.task_result import TaskResult
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor

T = TypeVar("T", bound=TaskResult)

Listed: TypeAlias = tuple[str, str, tuple[int, ...]]
"""Name, datatype and shape of a tensor; -1 is the images, or a size that varies."""


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """The forms of one type of results.

    Attributes:
        tasks: whose results they are.
        json: returns the fields that a result adds to an `ImageAnswer`.
        tensors: converts the results of n images to tensors [n, ...].
        outputs: lists these tensors for a head.
    """

    value: type[T]
    tasks: tuple[str, ...]
    json: Callable[[T, Vocabulary, PredictOptions], dict[str, Any]]
    tensors: Callable[[Sequence[T], Vocabulary, PredictOptions], list[OutputTensor]]
    outputs: Callable[[Head], list[Listed]]
