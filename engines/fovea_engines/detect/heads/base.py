"""Defines the interface of a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.signature import Fit, Signature
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array


class Head(Protocol):
    """Decodes one family's outputs. Immutable, so threads share it.

    Attributes:
        family: name in `FAMILIES`.
        task: the decoded task: "detect".
    """

    family: ClassVar[str]
    task: ClassVar[str]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Return how well a model's signature fits this family, or the reason why it does not."""
        ...

    @classmethod
    def open(cls, output: str, size: tuple[int, int] | None) -> Self:
        """Return a head for the named output and an input of (height, width) pixels.

        Raises:
            UnsupportedModel: the family needs the size, and it is unknown.
        """
        ...

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections, suppressed, best first.

        Args:
            outputs: the session's answer, float16, float32 or float64; not changed, and not
                referenced by the result. Values that are not finite are dropped.
            row: index of the image in the batch.
            options: options of the request. A box has only its best class, and is dropped when
                `options.classes` lacks that class.

        Returns:
            Boxes in pixels of the model's input, not clipped to it.
        """
        ...

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """The numbers of the first image, [columns, cells]: sides of boxes and classes by cell.

        None where the rows are ranked, and not of cells: two of equal score may change places.
        """
        ...


def corners(centred: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert boxes [n, 4] from cx cy w h to x1 y1 x2 y2."""
    centre, half = centred[:, :2], centred[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)
