"""Defines the names of classes and keypoints in a model's responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fovea_engines.results.skeleton import Skeleton, name_points

# Upper limit for class ids in a response. No real model has so many classes. The limit also limits
# the memory for the table of names, which is as long as the largest id.
_MAX_CLASSES = 1 << 20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names of classes and keypoints in a model's responses.

    Attributes:
        labels: class names by id; None if unknown.
        skeleton: names and bones of the keypoints; None if there are none.
        reason: reason why the response has raw tensors instead of a decoded result. Empty if the
            response has a decoded result.
    """

    labels: tuple[str, ...] | None = None
    skeleton: Skeleton | None = None
    reason: str = ""


NO_NAMES: Final = Vocabulary()
"""Vocabulary of results that have no names."""


def read_vocabulary(answer: object) -> Vocabulary:
    """Return the names in the JSON of a response. The name of an unnamed class is its number.

    Names in the stage results of a pipeline are left out.

    Raises:
        LookupError: a field is missing.
        TypeError: a value has the wrong type.
        ValueError: a class id is out of range.
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
    """Yield the JSON objects that contain a name: detections, classes and characters."""
    if isinstance(part, Mapping):
        if "character" in part or "class_name" in part:
            yield part
            return
        part = [*part.values()]
    if isinstance(part, list | tuple):
        for each in part:
            yield from _named(each)


def check_class(class_id: int) -> int:
    """Return a class id of a response as an int.

    Raises:
        ValueError: the id is out of range.
    """
    if not 0 <= class_id < _MAX_CLASSES:
        raise ValueError(f"no model has a class {class_id}")
    return int(class_id)
