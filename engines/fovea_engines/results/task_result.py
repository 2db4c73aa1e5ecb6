"""Defines the operations that the results of all tasks have."""

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
    """The result of a model for one image. Each task has one subclass.

    A head returns coordinates in pixels of the model's input. JSON and tensors need the result of
    `to_source`, which is in pixels of the upright image.

    Attributes:
        tasks: tasks that have this kind of result.
        field: field of a response that holds the result.
        compared: noun in messages for the values that `similarity` compares, e.g. "texts".
        columns: column names of `rows`; empty if the result has no fixed table.
    """

    __slots__ = ()
    tasks: ClassVar[tuple[str, ...]] = ()
    field: ClassVar[str] = ""
    compared: ClassVar[str] = "maps"
    columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the fields that the result adds to the JSON of an image in a /v1 response."""

    @classmethod
    @abstractmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the result from the JSON of an image in a response. Its numbers are rounded.

        `to_json` of the result returns the same JSON again. If the response leaves a map out, as
        with mask=none, the result has no map, and reading its pixels raises InvalidResult.

        Raises:
            LookupError: a field is missing.
            TypeError: a value has the wrong type.
            ValueError: a value is out of range, or a file is damaged.

        `read_result` calls this method, and raises InvalidResult in place of any error.
        """

    @classmethod
    @abstractmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the results for n images, n >= 1, to tensors [n, ...] by name.

        A tensor of texts is an object array of `bytes`.
        """

    @classmethod
    @abstractmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of a task's tensors.

        In a shape, -1 stands for the number of images, and for any dimension that varies.
        """

    @property
    @abstractmethod
    def summary(self) -> str:
        """Describe the result in a few words, e.g. "3 objects"."""

    @property
    @abstractmethod
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""

    def holding(self, arrays: Sequence[Array]) -> Self:
        """Return a copy of this result with other arrays, in the order of `self.arrays`.

        `Detections` and maps do not support this method, because they have fields that are not
        arrays.

        Raises:
            ValueError: the number of arrays is wrong.
        """
        try:
            return type(self)(*arrays)
        except TypeError as error:
            raise ValueError(f"{len(arrays)} arrays do not fit {type(self).__name__}") from error

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return lines of text for a drawing, each with the class id that determines its colour."""
        return [(self.summary, 0)]

    @property
    def likely(self) -> dict[int, float]:
        """Return the classes that apply to the whole image: class id -> score."""
        return {}

    def rows(self, vocabulary: Vocabulary) -> list[dict[str, Any]]:
        """Return the rows of a table. The keys of each row are `columns`."""
        value = self.to_json(vocabulary, PredictOptions(mask="none"))[self.field]
        several = value if isinstance(value, list) else [value]
        return [{name: each[name] for name in self.columns} for each in several]

    def caption(self, labels: Sequence[str] | None) -> str:
        """Return a few words for the caption of an object, if this is the result for its crop."""
        return ", ".join(class_name(labels, class_id) for class_id in self.likely)

    def similarity(self, other: TaskResult) -> float | None:
        """Return the agreement with the result of another engine for the same image, 0 to 1.

        Return None if the results have different types. Also return None for objects and classes:
        other code compares them one by one.
        """
        return None

    def in_rgb(self, channels: Channels) -> Self:
        """Return the result with its colours in RGB.

        Args:
            channels: order of the channels in the model's output.
        """
        return self

    @abstractmethod
    def to_source(self, back: LetterboxMap) -> Self:
        """Return the result in pixels of the upright image that `back` was computed for."""
