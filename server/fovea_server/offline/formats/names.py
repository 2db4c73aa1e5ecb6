"""Names the classes of a model, and what a pipeline found of an object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fovea_engines.results.attributes import Attribute
from fovea_engines.results.class_names import class_name

SEEN = 0.5
"""Keypoints of a lower score are mostly hidden, and guessed."""


def class_names(labels: Sequence[str] | None, seen: Iterable[int]) -> list[str]:
    """Return the names by id: all labels, and numbers of those that were seen beyond them."""
    most = max((len(labels or ()) - 1, *seen))
    return [class_name(labels, each) for each in range(most + 1)]


def likely_names(attributes: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the name of each attribute in an answer, with those of its likely classes."""
    found = []
    for one in attributes:
        names = {each["class_id"]: each["class_name"] for each in one["classes"]}
        likely = [names[class_id] for class_id in Attribute.from_json(one).likely]
        found.append((one["name"], likely))
    return found
