"""Defines the names that a model's responses use for classes and keypoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fovea_engines.results.skeleton import Skeleton, name_points

# No model has so many classes; tables of names are as long as the largest id.
_MAX_CLASSES = 1 << 20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names that a model's responses use.

    Attributes:
        labels: class names by id; None when unknown.
        skeleton: of the keypoints; None without them.
        reason: why there are tensors and nothing is decoded; empty where something is.
    """

    labels: tuple[str, ...] | None = None
    skeleton: Skeleton | None = None
    reason: str = ""


NO_NAMES: Final = Vocabulary()
"""Of results that have no names."""


def read_vocabulary(answer: object) -> Vocabulary:
    """Return the names in the JSON of an answer; ids without one become numbers.

    Those of the stages of a pipeline are not among them. LookupError, TypeError or ValueError
    where it is none.
    """
    names: dict[int, str] = {}
    letters: dict[str, None] = {}
    skeleton: Skeleton | None = None
    for one in _named(answer):
        if "character" in one:
            letters[str(one["character"])] = None
            continue
        names[check_class(one["class_id"])] = str(one["class_name"])
        if skeleton is None and one.get("keypoints"):
            skeleton = name_points([str(point["name"]) for point in one["keypoints"]])
    if names:
        labels = tuple(names.get(each, str(each)) for each in range(max(names) + 1))
        return Vocabulary(labels, skeleton)
    return Vocabulary(tuple(letters) or None)


def _named(part: object) -> Iterator[Mapping[str, Any]]:
    """Yield what has a name: objects, classes and characters."""
    if isinstance(part, Mapping):
        if "character" in part or "class_name" in part:
            yield part
            return
        part = [*part.values()]
    if isinstance(part, list | tuple):
        for each in part:
            yield from _named(each)


def check_class(class_id: int) -> int:
    """Return the number of a class in an answer; ValueError where no model has it."""
    if not 0 <= class_id < _MAX_CLASSES:
        raise ValueError(f"no model has a class {class_id}")
    return int(class_id)
