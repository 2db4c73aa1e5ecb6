"""Defines classes of whole images as typed values."""

from __future__ import annotations

from dataclasses import dataclass

from fovea_client.value import Value

_LIKELY = 0.5


@dataclass(frozen=True, slots=True)
class ScoredClass:
    """A class of the whole image; the scores of all classes add up to 1."""

    class_id: int
    class_name: str
    score: float


@dataclass(frozen=True, slots=True)
class Attribute(Value):
    """The classes of an image by one of several classifiers.

    Attributes:
        name: of the classifier.
        exclusive: one of the classes holds, so that all scores add up to 1; else any number of
            them holds.
        classes: best first; ids count through all classifiers of the model.
    """

    name: str
    exclusive: bool
    classes: tuple[ScoredClass, ...]

    @property
    def likely(self) -> tuple[ScoredClass, ...]:
        """Return the best class, or those with a score from .5 on where several can be."""
        if self.exclusive:
            return self.classes[:1]
        return tuple(each for each in self.classes if each.score >= _LIKELY)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the name with its likely classes."""
        named = ", ".join(f"{each.class_name} {each.score:.2f}" for each in self.likely)
        return (f"{self.name}: {named or 'none'}",)
