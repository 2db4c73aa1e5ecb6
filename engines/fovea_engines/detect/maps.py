"""Maps: a class, a share of the foreground, or a depth for each pixel of an image.

A network computes them in a grid of its own. They stay so, with the place of the image in it, and
are resized once, when somebody asks for pixels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.resampling import nearest, smooth
from fovea_engines.detect.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.plural import counted

NOTHING: Final = 65_535
"""Stands in a map of classes for a class that the request leaves out, and for an id that is none.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ClassMap(TaskResult):
    """The class of each pixel.

    Attributes:
        ids: uint16 [h, w] over the whole input, the best class of each cell.
        scores: float32 [k, h, w] of the k classes in `ids`, ascending; None of a model that
            computes classes only. They are interpolated, and then the best class is taken. A class
            that is the best of no cell is of no pixel.
        kept: ids of the classes that the request keeps; None for all.
        back: map to the upright image; None in the model's input.
    """

    ids: NDArray[np.uint16]
    scores: NDArray[np.float32] | None = None
    kept: tuple[int, ...] | None = None
    back: LetterboxMap | None = None

    @property
    def summary(self) -> str:
        """Return the number of classes."""
        found = np.unique(self._only_kept(self.ids))
        return counted(int((found != NOTHING).sum()), "class")

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.ids] if self.scores is None else [self.ids, self.scores]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image."""
        return replace(self, back=back)

    def shared(self, other: TaskResult) -> float | None:
        """Return the share of cells that have the same class."""
        return float((self.ids == other.ids).mean()) if isinstance(other, ClassMap) else None

    def pixels(self) -> NDArray[np.uint16]:
        """Return the class of each pixel of the upright image, [height, width], or `NOTHING`.

        In the model's input, it is the class of each cell.
        """
        if self.back is None:
            found = self.ids
        elif self.scores is None:
            found = nearest(self.ids, self.back)
        else:
            classes = np.unique(self.ids)
            found = classes[best_of(map(partial(smooth, back=self.back), self.scores))]
        return self._only_kept(found)

    def _only_kept(self, ids: NDArray[np.uint16]) -> NDArray[np.uint16]:
        if self.kept is None:
            return ids
        return np.where(np.isin(ids, self.kept), ids, np.uint16(NOTHING))


@dataclass(frozen=True, slots=True, eq=False)
class SoftMask(TaskResult):
    """A foreground, and how far each pixel belongs to it.

    Attributes:
        values: float32 [h, w] over the whole input, 0 (background) to 1.
        back: map to the upright image; None in the model's input.
    """

    values: NDArray[np.float32]
    back: LetterboxMap | None = None

    @property
    def summary(self) -> str:
        """Return the share of the foreground."""
        return f"a foreground of {self.values.mean():.0%}"

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.values]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image."""
        return replace(self, back=back)

    def shared(self, other: TaskResult) -> float | None:
        """Return 1 less the mean absolute difference."""
        if not isinstance(other, SoftMask):
            return None
        # Of 0 and NaN, `max` returns the first.
        return max(0.0, 1 - float(np.abs(self.values - other.values).mean()))

    def pixels(self) -> NDArray[np.float32]:
        """Return the value of each pixel of the upright image, [height, width], 0 to 1."""
        return self.values if self.back is None else smooth(self.values, self.back)


@dataclass(frozen=True, slots=True, eq=False)
class DepthMap(TaskResult):
    """The depth of each pixel.

    Attributes:
        values: float32 [h, w] over the whole input, finite.
        metres: they are metres; else they have the scale of the model, and mostly grow towards the
            camera.
        corners: outermost cells lie on outermost pixels, see `smooth`.
        back: map to the upright image; None in the model's input.
    """

    values: NDArray[np.float32]
    metres: bool = False
    corners: bool = False
    back: LetterboxMap | None = None

    @property
    def summary(self) -> str:
        """Return the range of its values."""
        unit = " m" if self.metres else ""
        return f"depths of {self.values.min():.3g} to {self.values.max():.3g}{unit}"

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.values]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image."""
        return replace(self, back=back)

    def shared(self, other: TaskResult) -> float | None:
        """Return 1 less the mean absolute difference over the mean depth."""
        if not isinstance(other, DepthMap):
            return None
        off = float(np.abs(self.values - other.values).mean())
        mean = float(np.abs(self.values).mean())
        return max(0.0, 1 - off / mean) if mean else float(off == 0)

    def pixels(self) -> NDArray[np.float32]:
        """Return the value of each pixel of the upright image, [height, width]."""
        if self.back is None:
            return self.values
        return smooth(self.values, self.back, corners=self.corners)


def best_of(planes: Iterable[NDArray[np.float32]]) -> NDArray[np.uint16]:
    """Return the number of the plane, all [h, w], with the largest value in each place.

    One after the other: all planes at once can be more than the memory.
    """
    rest = iter(planes)
    best = next(rest).copy()
    numbers = np.zeros(best.shape, np.uint16)
    for number, plane in enumerate(rest, 1):
        better = plane > best
        numbers[better] = number
        np.maximum(best, plane, out=best)
    return numbers
