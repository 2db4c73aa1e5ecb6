"""Defines the words in which the results of a model are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fovea_engines.results.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words in which a model's answers are written.

    Attributes:
        labels: class names by id; None when unknown.
        skeleton: of the keypoints; None without them.
        reason: why there are tensors and nothing is decoded; empty where something is.
    """

    labels: tuple[str, ...] | None = None
    skeleton: Skeleton | None = None
    reason: str = ""


WORDLESS: Final = Vocabulary()
"""Of results that have no names."""
