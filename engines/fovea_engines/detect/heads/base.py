"""Defines the interface of a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.signature import Fit, Signature
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a raw output: centre, size, objectness if it has it, and classes.

    They lie along dimension `axis`, 1 or 2; the boxes are the other. Without objectness, a class's
    probability is the score.
    """

    axis: Literal[1, 2]
    objectness: bool


@dataclass(frozen=True, slots=True)
class Head(ABC):
    """Decodes one family's outputs. Immutable, so threads share it.

    Attributes:
        family: name in `FAMILIES`.
        task: the decoded task: "detect".
        preprocess: fields of `PreprocessSpec` in which its training differs from the defaults.
        layout: of the output, as suppression in the graph reads it; None where the model has
            suppressed and ranked its rows already.
        output: name of the output that is decoded.
    """

    family: ClassVar[str]
    task: ClassVar[str] = "detect"
    preprocess: ClassVar[Mapping[str, Any]] = {}
    layout: ClassVar[Layout | None] = None

    output: str

    @classmethod
    @abstractmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Return how well a model's signature fits this family, or the reason why it does not."""

    @classmethod
    def open(cls, output: str, size: tuple[int, int] | None) -> Self:
        """Return a head for the named output and an input of (height, width) pixels."""
        return cls(output)

    @abstractmethod
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections, suppressed, best first.

        Args:
            outputs: the session's answer, float16, float32 or float64; not changed, and not
                referenced by the result. Values that are not finite are dropped.
            row: index of the image in the batch.
            options: of the request. A box has only its best class, and is dropped when
                `options.classes` lacks that class.

        Returns:
            Boxes in pixels of the model's input, not clipped to it.
        """

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the first image's numbers, [columns, boxes]; None where the rows are ranked.

        Two ranked rows of equal score may change places, so that their numbers cannot be compared.
        """
        if self.layout is None:
            return None
        first: Array = outputs[self.output][0]
        return first if self.layout.axis == 1 else first.T


@runtime_checkable
class OnGrid(Protocol):
    """A head whose boxes are offsets in the cells of a grid, and logarithms of its strides."""

    def grid(
        self, found: NDArray[np.integer], boxes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the top-left corner [n, 2] and stride [n, 1], in pixels, of n of all cells."""
        ...


def corners(centred: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert boxes [n, 4] from cx cy w h to x1 y1 x2 y2."""
    centre, half = centred[:, :2], centred[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)
