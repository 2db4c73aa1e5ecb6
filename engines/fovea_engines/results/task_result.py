"""Defines the operations that the results of all tasks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from fovea_engines.results.class_names import class_name
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.spec import Channels


class TaskResult(ABC):
    """The result for one image; each task has one type.

    A head returns it in pixels of the model's input. JSON and tensors are in pixels of the upright
    image, as after `to_source`.

    Attributes:
        tasks: whose results it is.
        field: of an image's answer, which holds it.
        shares: what `shared` measures, for people.
        columns: of the table of its `rows`; none where it fits into none, or a model decides them.
    """

    __slots__ = ()
    tasks: ClassVar[tuple[str, ...]] = ()
    field: ClassVar[str] = ""
    shares: ClassVar[str] = "maps"
    columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the fields that it adds to the answer for an image, as /v1 has them."""

    @classmethod
    @abstractmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read it from the answer for an image, in which numbers are rounded.

        `to_json` then writes the same again. Where the answer leaves a map out, as with mask=none,
        so does the result: its pixels are an InvalidResult. `read_result` calls it, and raises
        whatever else it raises as one, too.
        """

    @classmethod
    @abstractmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the results for n images, at least one, to tensors [n, ...] by name.

        Texts are objects of `bytes`.
        """

    @classmethod
    @abstractmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """List the tensors of a model's task; -1 is the images, or a size that varies."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Describe it in a few words, e.g. "3 objects"."""

    @property
    @abstractmethod
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""

    def holding(self, arrays: Sequence[Array]) -> Self:
        """Return a result of the same model that has these arrays, as `arrays` lists them.

        ValueError where they are not as many. Objects and maps have more than arrays.
        """
        try:
            return type(self)(*arrays)
        except TypeError as error:
            raise ValueError(f"{len(arrays)} arrays make no {type(self).__name__}") from error

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return the lines that a picture lists of it, each with the number of its colour."""
        return [(self.summary, 0)]

    @property
    def likely(self) -> dict[int, float]:
        """Return the classes of the whole image that hold, each with its score."""
        return {}

    def rows(self, vocabulary: Vocabulary) -> list[dict[str, Any]]:
        """Return the rows of a table, by its `columns`."""
        value = self.to_json(vocabulary, PredictOptions(mask="none"))[self.field]
        several = value if isinstance(value, list) else [value]
        return [{name: each[name] for name in self.columns} for each in several]

    def caption(self, labels: Sequence[str] | None) -> str:
        """Return a few words that an object is named by, if it is of a crop of that."""
        return ", ".join(class_name(labels, class_id) for class_id in self.likely)

    def shared(self, other: TaskResult) -> float | None:
        """Return how far it is the result of another engine, 0 to 1: the agreement of both.

        It is None of objects and classes, which are compared one by one.
        """
        return None

    def in_rgb(self, channels: Channels) -> Self:
        """Return it with colours in RGB, of a network whose channels have this order."""
        return self

    @abstractmethod
    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image that `back` was computed for."""
