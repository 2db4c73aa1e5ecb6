"""Defines the text of an image as a typed value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from fovea_client.value import Value


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a text; its score is 0 to 1."""

    character: str
    score: float


@dataclass(frozen=True, slots=True)
class Reading(Value):
    """The text of an image, which is one line.

    Attributes:
        score: the mean of its characters, 0 to 1; 0 without one.
        characters: from left to right.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("text", "score")

    text: str
    score: float
    characters: tuple[Character, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the text and its score."""
        return (f"{self.text} {self.score:.2f}",)

    def rows(self) -> Iterator[Mapping[str, object]]:
        """Yield one row."""
        yield {"text": self.text, "score": self.score}
