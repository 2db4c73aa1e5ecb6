"""Defines the value that networks for re-identification and similarity return."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.columns import finite
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(TaskResult):
    """A vector of one image; images alike have vectors in almost the same direction.

    Attributes:
        vector: float32 [n], finite, as the network has computed it.
        length: that the network gave it, if `vector` is divided by that already, as in an answer.
    """

    tasks: ClassVar[tuple[str, ...]] = ("embed",)
    field: ClassVar[str] = "embedding"
    shares: ClassVar[str] = "directions of vectors"
    columns: ClassVar[tuple[str, ...]] = ("norm", "vector")

    vector: NDArray[np.float32]
    length: float | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the vector, in base64 or as a list, and the norm that the network gave it."""
        vector = self._choose_vector(options)
        answer: dict[str, Any] = {"norm": round(self.norm, 6), "normalised": options.normalize}
        if options.vector == "list":
            answer["numbers"] = vector.tolist()
        else:
            answer["data"] = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return {self.field: answer}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read a vector; raises as `TaskResult.from_json`."""
        given = answer[cls.field]
        if (data := given.get("data")) is None:
            vector = finite(given["numbers"])
        else:
            vector = finite(np.frombuffer(base64.b64decode(data, validate=True), "<f4"))
        return cls(vector, float(given["norm"]) if given["normalised"] else None)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert vectors: ``embedding`` float32 [n, d], and ``norms`` float32 [n] of the network.

        With normalize, which is the default, the vectors have length 1.
        """
        return {
            "embedding": np.stack([one._choose_vector(options) for one in found]),
            "norms": np.array([one.norm for one in found], np.float32),
        }

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """List the tensors."""
        return [
            TensorSpec("embedding", "float32", (-1, -1)),
            TensorSpec("norms", "float32", (-1,)),
        ]

    def _choose_vector(self, options: PredictOptions) -> NDArray[np.float32]:
        return self.unit if options.normalize else self.vector

    @property
    def norm(self) -> float:
        """Return the length that the network gave the vector."""
        if self.length is not None:
            return self.length
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    @property
    def unit(self) -> NDArray[np.float32]:
        """Return the vector with length 1, float32 [n]; zeros stay zeros."""
        if self.length is not None:
            return self.vector
        return (self.vector / (self.norm or 1.0)).astype(np.float32)

    @property
    def summary(self) -> str:
        """Return the number of its numbers, and its length."""
        return f"a vector of {len(self.vector)}, norm {self.norm:.3g}"

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.vector]

    def rows(self, vocabulary: Vocabulary) -> list[dict[str, Any]]:
        """Return one row, with the shortest numbers that read as the same float32."""
        numbers = [float(str(number)) for number in self.vector]
        return [{"norm": round(self.norm, 6), "vector": numbers}]

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
