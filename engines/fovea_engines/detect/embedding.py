"""Defines the value that networks for re-identification and similarity return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(TaskResult):
    """A vector of one image; images alike have vectors in almost the same direction.

    Attributes:
        vector: float32 [n], finite, as the network has computed it.
    """

    shares: ClassVar[str] = "directions of vectors"

    vector: NDArray[np.float32]

    @property
    def norm(self) -> float:
        """Return the length of the vector."""
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    @property
    def unit(self) -> NDArray[np.float32]:
        """Return the vector with length 1, float32 [n]; zeros stay zeros."""
        return (self.vector / (self.norm or 1.0)).astype(np.float32)

    @property
    def summary(self) -> str:
        """Return the number of its numbers, and its length."""
        return f"a vector of {len(self.vector)}, norm {self.norm:.3g}"

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.vector]

    def shared(self, other: TaskResult) -> float | None:
        """Return 1 less the angle over 90 degrees: .98 is a cosine of .9995, and .8 one of .951.

        A cosine itself hardly moves where vectors begin to point elsewhere.
        """
        if not isinstance(other, Embedding):
            return None
        cosine = float(self.unit.astype(np.float64) @ other.unit.astype(np.float64))
        # Of 0 and NaN, `max` returns the first.
        return max(0.0, 1 - float(np.arccos(np.clip(cosine, -1, 1))) / (np.pi / 2))

    def to_source(self, back: LetterboxMap) -> Self:
        """Return itself: it is of the whole image."""
        return self
