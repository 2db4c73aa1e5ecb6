"""Defines the value that a classifier returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import shown_name
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.plural import counted

# A lower score would be written as 0.00.
_LEAST_SCORE = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class Classes(TaskResult):
    """The most probable classes of one image, best first.

    Attributes:
        class_ids: int32 [k].
        scores: float32 [k], probabilities of 0 to 1, descending. Those of all classes add up to 1.
    """

    class_ids: NDArray[np.int32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def summary(self) -> str:
        """Return the number of classes."""
        return counted(len(self), "class")

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.class_ids, self.scores]

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return the classes, best first, without those of which 0.00 would be written."""
        pairs = zip(self.class_ids.tolist(), self.scores.tolist(), strict=True)
        return [
            (f"{shown_name(labels, class_id)} {score:.2f}", class_id)
            for class_id, score in pairs
            if score >= _LEAST_SCORE
        ]

    @property
    def likely(self) -> dict[int, float]:
        """Return the best class."""
        return dict(zip(self.class_ids[:1].tolist(), self.scores[:1].tolist(), strict=True))

    def to_source(self, back: LetterboxMap) -> Self:
        """Return itself: a class is of the whole image."""
        return self


def best_classes(probabilities: NDArray[np.float32], options: PredictOptions) -> Classes:
    """Return the `top_k` of the wanted classes; of equal ones the lower id comes first.

    Args:
        probabilities: float32 [classes]; those that are not finite are dropped.
        options: of the request; `classes` has ids.
    """
    wanted = np.isfinite(probabilities)
    if options.classes is not None:
        wanted &= np.isin(np.arange(len(probabilities)), options.classes)
    ids = np.flatnonzero(wanted)
    best = ids[np.argsort(-probabilities[ids], kind="stable")[: options.top_k]]
    return Classes(best.astype(np.int32), probabilities[best])
