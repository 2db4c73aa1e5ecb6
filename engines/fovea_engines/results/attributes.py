"""Defines the result of models that have several classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.class_names import class_name, shown_name
from fovea_engines.results.classes import classes_json, read_scores
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.text import counted

LIKELY = 0.5
"""Probability from which a class of a non-exclusive classifier counts as present."""


class Attribute(NamedTuple):
    """The classes that one of several classifiers finds in an image.

    Attributes:
        name: name of the classifier's output.
        probabilities: float32 [k], the probabilities of all classes of the classifier.
        exclusive: True if exactly one class applies, so that the probabilities add up to 1. False
            if any number of classes may apply.
        class_ids: int32, ids of the classes that the request keeps, best first. The ids are
            numbered across all classifiers of the model, because the model has one list of labels.
        first: lowest class id of the classifier.
    """

    name: str
    probabilities: NDArray[np.float32]
    exclusive: bool
    class_ids: NDArray[np.int32]
    first: int

    @classmethod
    def of(
        cls,
        name: str,
        probabilities: NDArray[np.float32],
        first: int,
        options: PredictOptions,
        *,
        exclusive: bool,
    ) -> Self:
        """Create an attribute with the best `top_k` of the requested classes.

        Args:
            name: name of the classifier's output.
            probabilities: float32 [k], probabilities of all classes of the classifier.
            first: lowest class id of the classifier.
            options: options of the request; `classes` holds ids.
            exclusive: whether exactly one class applies.
        """
        ids = np.arange(first, first + len(probabilities), dtype=np.int32)
        ids = ids[np.argsort(-probabilities, kind="stable")]
        if options.classes is not None:
            ids = ids[np.isin(ids, options.classes)]
        return cls(name, probabilities, exclusive, ids[: options.top_k], first)

    def to_json(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """Return the name and the best classes as JSON."""
        classes = classes_json(self.class_ids, self.scores, labels)
        return {"name": self.name, "exclusive": self.exclusive, "classes": classes}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Self:
        """Read an attribute from JSON. Classes that are not in the JSON get the probability 0."""
        ids, scores = read_scores(answer["classes"])
        first = int(ids.min()) if len(ids) else 0
        probabilities = np.zeros(int(ids.max(initial=first)) - first + 1, np.float32)
        probabilities[ids - first] = scores
        return cls(str(answer["name"]), probabilities, bool(answer["exclusive"]), ids, first)

    @property
    def scores(self) -> NDArray[np.float32]:
        """Return the probabilities of `class_ids`, float32, in the same order."""
        return self.probabilities[self.class_ids - self.first]

    @property
    def likely(self) -> list[int]:
        """Return the ids of the classes that apply.

        This is the best class if the classifier is exclusive. Otherwise these are all classes with
        a probability of at least `LIKELY`.
        """
        kept = slice(1) if self.exclusive else self.scores >= LIKELY
        ids: list[int] = self.class_ids[kept].tolist()
        return ids


@dataclass(frozen=True, slots=True, eq=False)
class Attributes(TaskResult):
    """The classes of an image by each classifier, in the order of the model's outputs.

    Attributes:
        found: one `Attribute` for each classifier.
    """

    tasks: ClassVar[tuple[str, ...]] = ("attributes",)
    field: ClassVar[str] = "attributes"
    compared: ClassVar[str] = "probabilities"
    columns: ClassVar[tuple[str, ...]] = ("attribute", "class_id", "class_name", "score")

    found: tuple[Attribute, ...]

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the best classes of each classifier."""
        return {self.field: [each.to_json(vocabulary.labels) for each in self.found]}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the classes of each classifier. `TaskResult.from_json` lists the errors."""
        return cls(tuple(map(Attribute.from_json, answer[cls.field])))

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the results for n images to tensors.

        Returns:
            ``attributes``: texts [n, classifiers], each "name=class". If a classifier is not
                exclusive, the text has all classes with a probability of at least 0.5, separated by
                commas.
            ``scores``: float32 [n, classes], the probabilities of all classes in the order of ids.
        """
        texts = np.full((len(found), len(found[0].found)), b"", object)
        for row, image in zip(texts, found, strict=True):
            for column, each in enumerate(image.found):
                named = ",".join(
                    class_name(vocabulary.labels, class_id) for class_id in each.likely
                )
                row[column] = f"{each.name}={named}".encode()
        scores = np.stack([np.concatenate([a.probabilities for a in one.found]) for one in found])
        return {"attributes": texts, "scores": scores}

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return [
            TensorSpec("attributes", "object", (-1, -1)),
            TensorSpec("scores", "float32", (-1, -1)),
        ]

    @property
    def summary(self) -> str:
        """Return the number of classifiers."""
        return counted(len(self.found), "attribute")

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [array for each in self.found for array in (each.probabilities, each.class_ids)]

    def holding(self, arrays: Sequence[Array]) -> Self:
        """Return a copy with other arrays. `TaskResult.holding` describes it."""
        parts = zip(self.found, arrays[::2], arrays[1::2], strict=True)
        return type(self)(
            tuple(one._replace(probabilities=some, class_ids=ids) for one, some, ids in parts)
        )

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return a line of text for each classifier, with its likely classes."""
        lines = []
        for each in self.found:
            named = ", ".join(
                f"{shown_name(labels, class_id)} {each.probabilities[class_id - each.first]:.2f}"
                for class_id in each.likely
            )
            lines.append((f"{each.name}: {named or 'none'}", each.likely[0] if named else 0))
        return lines

    def rows(self, vocabulary: Vocabulary) -> list[dict[str, Any]]:
        """Return a table row for each class of each classifier."""
        return [
            {"attribute": each.name} | row
            for each in self.found
            for row in each.to_json(vocabulary.labels)["classes"]
        ]

    @property
    def likely(self) -> dict[int, float]:
        """Return the likely classes of all classifiers, each with its probability."""
        return {
            i: float(one.probabilities[i - one.first]) for one in self.found for i in one.likely
        }

    def similarity(self, other: TaskResult) -> float | None:
        """Return the agreement with another result, 0 to 1.

        The agreement is 1 minus the mean difference of the classifiers. The difference of an
        exclusive classifier is half the sum of the absolute differences of its probabilities. The
        difference of any other classifier is the mean of these absolute differences.
        """
        if not isinstance(other, Attributes):
            return None
        moved = [
            float(np.abs(one.probabilities - two.probabilities).sum() / 2)
            if one.exclusive
            else float(np.abs(one.probabilities - two.probabilities).mean())
            for one, two in zip(self.found, other.found, strict=True)
        ]
        # If the agreement is NaN, return 0: `max(0.0, nan)` returns its first argument.
        return max(0.0, 1 - sum(moved) / len(moved))

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the result unchanged, because it has no coordinates."""
        return self
