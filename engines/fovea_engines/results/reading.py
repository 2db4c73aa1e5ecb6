"""Defines the result of text recognition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.columns import SCORE, pad_rows, round_columns
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.text import counted


@dataclass(frozen=True, slots=True, eq=False)
class ReadText(TaskResult):
    """The characters of a line of text, from left to right.

    Attributes:
        ids: int32 [k], index of each character in the model's labels. The first index after the
            last label stands for a space.
        scores: float32 [k], probability of each character, 0 to 1.
        mean: mean score, for a result that was read from a response. A response rounds the scores,
            so the exact mean cannot be computed from them. None if the mean is computed from
            `scores`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("read",)
    field: ClassVar[str] = "reading"
    compared: ClassVar[str] = "texts"
    columns: ClassVar[tuple[str, ...]] = ("text", "score")

    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    mean: float | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the text, its mean score, and each character with its score."""
        characters = self.characters(vocabulary.labels)
        scores = round_columns(self.scores[:, None], SCORE)
        return {
            self.field: {
                "text": "".join(characters),
                "score": round(self.score, 5),
                "characters": [
                    {"character": character, "score": score}
                    for character, (score,) in zip(characters, scores, strict=True)
                ],
            }
        }

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read a text whose characters are labels. `TaskResult.from_json` lists the errors."""
        given = answer[cls.field]
        labels = vocabulary.labels
        if labels is None:
            ids = [int(one["character"][1:-1]) for one in given["characters"]]
        else:
            known = {" ": len(labels)} | {each: at for at, each in enumerate(labels)}
            ids = [known[one["character"]] for one in given["characters"]]
        scores = np.array([one["score"] for one in given["characters"]], np.float32)
        return cls(np.array(ids, np.int32), scores, float(given["score"]))

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the texts of n images to tensors.

        Returns:
            ``text`` texts [n]; ``scores`` float32 [n], the mean score of each text;
            ``character_scores`` float32 [n, k], where shorter texts end with zeros.
        """
        texts = ["".join(one.characters(vocabulary.labels)).encode() for one in found]
        each = [one.scores for one in found]
        return {
            "text": np.array(texts, object),
            "scores": np.array([one.score for one in found], np.float32),
            "character_scores": pad_rows(each, max(map(len, each)), np.float32),
        }

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return [
            TensorSpec("text", "object", (-1,)),
            TensorSpec("scores", "float32", (-1,)),
            TensorSpec("character_scores", "float32", (-1, -1)),
        ]

    @property
    def score(self) -> float:
        """Return the mean probability of the characters, or 0 if there are none."""
        if self.mean is not None:
            return self.mean
        return float(self.scores.mean()) if len(self.scores) else 0.0

    @property
    def summary(self) -> str:
        """Return the number of characters, as text."""
        return counted(len(self.ids), "character")

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.ids, self.scores]

    def characters(self, labels: Sequence[str] | None) -> list[str]:
        """Return the characters. Without labels, each character is its index, such as "[7]"."""
        if labels is None:
            return [f"[{each}]" for each in self.ids.tolist()]
        return [labels[each] if each < len(labels) else " " for each in self.ids.tolist()]

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return one line with the recognised text and its score."""
        return [(f"{''.join(self.characters(labels))} {self.score:.2f}", 0)]

    def caption(self, labels: Sequence[str] | None) -> str:
        """Return the recognised text."""
        return "".join(self.characters(labels))

    def similarity(self, other: TaskResult) -> float | None:
        """Return 1 minus the edit distance divided by the length of the longer text, 0 to 1."""
        if not isinstance(other, ReadText):
            return None
        most = max(len(self.ids), len(other.ids))
        return 1 - edit_distance(self.ids.tolist(), other.ids.tolist()) / most if most else 1.0

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the result unchanged, because it has no coordinates."""
        return self


def edit_distance(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the smallest number of insertions, deletions and substitutions (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, each in enumerate(one, 1):
        above, row[0] = row[0], at
        for place, wanted in enumerate(other, 1):
            best = min(row[place] + 1, row[place - 1] + 1, above + (each != wanted))
            above, row[place] = row[place], best
    return row[-1]
