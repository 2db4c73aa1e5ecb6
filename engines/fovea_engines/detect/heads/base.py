"""The seam between a model's raw outputs and detections."""

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
    """Reads one family's outputs. Immutable once made: threads share it.

    Attributes:
        family: name in `FAMILIES`.
        task: what is decoded: "detect".
    """

    family: ClassVar[str]
    task: ClassVar[str]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """How far a model's signature is this family's, or why it is not."""
        ...

    @classmethod
    def open(cls, output: str, size: tuple[int, int] | None) -> Self:
        """A head for the output of that name and an input of (height, width) pixels.

        Raises:
            UnsupportedModel: the family needs the size, and it is not known.
        """
        ...

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """One image's detections, suppressed, best first.

        Args:
            outputs: the session's answer, float32 or float16 (float64 is read too); only read,
                and not kept alive by the result. Values that are not finite are dropped.
            row: which image of the batch.
            options: what the request asked for. A box has one class, its best one, and is
                dropped when `options.classes` does not hold that one.

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
    """Boxes [n, 4] of cx cy w h as x1 y1 x2 y2."""
    centre, half = centred[:, :2], centred[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)
