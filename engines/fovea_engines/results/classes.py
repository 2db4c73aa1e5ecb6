"""Defines the result of a classifier, and converts classes to JSON and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.class_names import class_name, shown_name
from fovea_engines.results.columns import SCORE, finite, pad_rows, round_columns
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary, check_class
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.text import counted

# Lowest score that a drawing lists: lower scores would be printed as 0.00.
_MIN_SCORE = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class Classes(TaskResult):
    """The most probable classes of one image, best first.

    Attributes:
        class_ids: int32 [k], ids of the classes.
        scores: float32 [k], probabilities from 0 to 1, in descending order. The probabilities of
            all classes of the model add up to 1.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classify",)
    field: ClassVar[str] = "classes"
    columns: ClassVar[tuple[str, ...]] = ("class_id", "class_name", "score")

    class_ids: NDArray[np.int32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scores)

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the classes as JSON, best first."""
        return {self.field: classes_json(self.class_ids, self.scores, vocabulary.labels)}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the classes of a response. `TaskResult.from_json` lists the errors."""
        return cls(*read_scores(answer[cls.field]))

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the classes of n images to tensors, best first.

        Returns:
            ``scores`` float32 [n, k], ``class_ids`` int32 [n, k] and ``class_names`` texts [n, k].
            k is the largest number of classes of an image, which is at most `top_k`.
        """
        return scored_tensors(found, max(map(len, found)), vocabulary.labels)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return [*SCORED]

    @property
    def summary(self) -> str:
        """Return the number of classes."""
        return counted(len(self), "class")

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.class_ids, self.scores]

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return the classes, best first, without classes whose score would be printed as 0.00."""
        pairs = zip(self.class_ids.tolist(), self.scores.tolist(), strict=True)
        return [
            (f"{shown_name(labels, class_id)} {score:.2f}", class_id)
            for class_id, score in pairs
            if score >= _MIN_SCORE
        ]

    @property
    def likely(self) -> dict[int, float]:
        """Return the best class with its score."""
        return dict(zip(self.class_ids[:1].tolist(), self.scores[:1].tolist(), strict=True))

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the result unchanged, because it has no coordinates."""
        return self


def best_classes(probabilities: NDArray[np.float32], options: PredictOptions) -> Classes:
    """Return the best `top_k` of the requested classes. Equal scores are sorted by class id.

    Args:
        probabilities: float32 [classes]; values that are not finite are dropped.
        options: options of the request; `classes` holds ids.
    """
    wanted = np.isfinite(probabilities)
    if options.classes is not None:
        wanted &= np.isin(np.arange(len(probabilities)), options.classes)
    ids = np.flatnonzero(wanted)
    best = ids[np.argsort(-probabilities[ids], kind="stable")[: options.top_k]]
    return Classes(best.astype(np.int32), probabilities[best])


def classes_json(
    class_ids: NDArray[np.int32], scores: NDArray[np.float32], labels: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return classes as the JSON rows of a response, with rounded scores."""
    return [
        {"class_id": each, "class_name": class_name(labels, each), "score": score}
        for each, (score,) in zip(
            class_ids.tolist(), round_columns(scores[:, None], SCORE), strict=True
        )
    ]


def read_scores(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Read the ids and scores of classes in a response.

    Returns:
        The ids, int32 [k], and the scores, float32 [k].

    Raises:
        LookupError: a row lacks its class id or score.
        TypeError: a value has the wrong type.
        ValueError: a class id is out of range, or a score is not finite.
    """
    pairs = [(row["class_id"], row["score"]) for row in rows]
    ids, scores = zip(*pairs, strict=True) if pairs else ((), ())
    for class_id in ids:
        check_class(class_id)
    return np.array(ids, np.int32), finite(scores)


class Scored(Protocol):
    """A result that has class ids and scores."""

    @property
    def class_ids(self) -> NDArray[np.int32]:
        """Class ids, int32 [k]."""
        ...

    @property
    def scores(self) -> NDArray[np.float32]:
        """Scores, float32 [k]."""
        ...


SCORED: tuple[TensorSpec, ...] = (
    TensorSpec("scores", "float32", (-1, -1)),
    TensorSpec("class_ids", "int32", (-1, -1)),
    TensorSpec("class_names", "object", (-1, -1)),
)
"""Specs of the tensors that `scored_tensors` returns."""


def scored_tensors(
    found: Sequence[Scored], most: int, labels: Sequence[str] | None
) -> dict[str, Array]:
    """Return the scores, ids and names of the classes of n images, as tensors [n, most].

    If an image has fewer than `most` classes, its row ends with zeros or empty texts.
    """
    names = np.full((len(found), most), b"", object)
    for row, one in enumerate(found):
        for column, class_id in enumerate(one.class_ids.tolist()):
            names[row, column] = class_name(labels, class_id).encode()
    return {
        "scores": pad_rows([one.scores for one in found], most, np.float32),
        "class_ids": pad_rows([one.class_ids for one in found], most, np.int32),
        "class_names": names,
    }
