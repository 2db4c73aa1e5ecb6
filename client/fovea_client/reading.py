"""Defines the text of an image as a typed value."""

from __future__ import annotations

from dataclasses import dataclass

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

    text: str
    score: float
    characters: tuple[Character, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the text and its score."""
        return (f"{self.text} {self.score:.2f}",)
