"""Defines what every task's answer for one image can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap


class TaskResult(ABC):
    """The result for one image; each task has one type.

    A head returns it in pixels of the model's input.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def summary(self) -> str:
        """Say in a few words what it is, e.g. "3 objects"."""

    @property
    @abstractmethod
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""

    @abstractmethod
    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image that `back` was computed for."""
