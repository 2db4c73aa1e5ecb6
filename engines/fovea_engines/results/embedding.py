"""Defines the result of models that compute embeddings, e.g. for search or re-identification."""

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
    """The embedding of one image. Similar images have embeddings with almost the same direction.

    Attributes:
        vector: float32 [n], finite numbers of the embedding.
        length: norm of the embedding before its normalisation, if `vector` is already normalised
            because it was read from a response; otherwise None.
    """

    tasks: ClassVar[tuple[str, ...]] = ("embed",)
    field: ClassVar[str] = "embedding"
    compared: ClassVar[str] = "directions of vectors"
    columns: ClassVar[tuple[str, ...]] = ("norm", "vector")

    vector: NDArray[np.float32]
    length: float | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the embedding as base64 or as a list, and its norm before normalisation."""
        vector = self._choose_vector(options)
        answer: dict[str, Any] = {"norm": round(self.norm, 6), "normalised": options.normalize}
        if options.vector == "list":
            answer["numbers"] = vector.tolist()
        else:
            answer["data"] = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return {self.field: answer}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read an embedding from a response. `TaskResult.from_json` lists the errors."""
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
        """Convert the embeddings of n images to tensors.

        Returns:
            ``embedding`` float32 [n, d]. Each embedding has length 1 if `normalize` is True, which
                is the default.
            ``norms`` float32 [n], norms of the embeddings before normalisation.
        """
        return {
            "embedding": np.stack([one._choose_vector(options) for one in found]),
            "norms": np.array([one.norm for one in found], np.float32),
        }

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return [
            TensorSpec("embedding", "float32", (-1, -1)),
            TensorSpec("norms", "float32", (-1,)),
        ]

    def _choose_vector(self, options: PredictOptions) -> NDArray[np.float32]:
        return self.unit if options.normalize else self.vector

    @property
    def norm(self) -> float:
        """Return the norm of the embedding before normalisation."""
        if self.length is not None:
            return self.length
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    @property
    def unit(self) -> NDArray[np.float32]:
        """Return the embedding with length 1, float32 [n]. An embedding of zeros stays zero."""
        if self.length is not None:
            return self.vector
        return (self.vector / (self.norm or 1.0)).astype(np.float32)

    @property
    def summary(self) -> str:
        """Return the number of dimensions and the norm, as text."""
        return f"a vector of {len(self.vector)}, norm {self.norm:.3g}"

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.vector]

    def rows(self, vocabulary: Vocabulary) -> list[dict[str, Any]]:
        """Return one row. The numbers have only as many digits as an exact float32 needs."""
        numbers = [float(str(number)) for number in self.vector]
        return [{"norm": round(self.norm, 6), "vector": numbers}]

    def similarity(self, other: TaskResult) -> float | None:
        """Return the agreement with another embedding, 0 to 1.

        The agreement is 1 minus the angle between the embeddings divided by 90 degrees. The angle
        shows small differences better than the cosine: an agreement of .98 corresponds to a cosine
        of .9995, and .8 to .951.
        """
        if not isinstance(other, Embedding):
            return None
        cosine = float(self.unit.astype(np.float64) @ other.unit.astype(np.float64))
        # If the agreement is NaN, return 0: `max(0.0, nan)` returns its first argument.
        return max(0.0, 1 - float(np.arccos(np.clip(cosine, -1, 1))) / (np.pi / 2))

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the result unchanged, because it has no coordinates."""
        return self
