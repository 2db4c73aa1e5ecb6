"""Raw grid head of YOLOX: [batch, cells, 5 + classes]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.signature import STRIDES, Fit, Signature, cells
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class YoloX:
    """Columns are offset x y in cells, log w h in strides, objectness and classes.

    Decoded as in the YOLOX paper (arXiv 2107.08430): (offset + cell) x stride, exp(log) x stride.
    Objectness and classes are probabilities already; the score is their product.
    """

    family: ClassVar[str] = "yolox"
    task: ClassVar[str] = "detect"

    output: str
    size: tuple[int, int]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """See `Head.fit`."""
        _, boxes, columns = signature.output.shape
        fit = signature.fit_grid(boxes, columns, per_cell=1, others=5)
        if isinstance(fit, str):
            return fit
        if not fit.sure and signature.exporter_metadata:
            return "the number of boxes is not known, and YOLOX exports carry no metadata"
        if columns == 4 + 80 and signature.num_labels is None:
            return replace(fit, twin="a transposed YOLOv8 of 80 classes")
        return fit

    @classmethod
    def open(cls, output: str, size: tuple[int, int] | None) -> Self:
        """See `Head.open`."""
        if size is None:
            raise UnsupportedModel(
                "a YOLOX grid is decoded with the input's size, which is dynamic: "
                "build with --size HEIGHTxWIDTH"
            )
        return cls(output, size)

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """See `Head.decode`."""
        rows = outputs[self.output][row]
        # No class exceeds 1, so objectness bounds the score: one column decides for most rows.
        found = np.flatnonzero(rows[:, 4] >= options.conf)
        few = rows[found].astype(np.float32, copy=False)
        scores = few[:, 4] * few[:, 5:].max(axis=1)
        origin, stride = self.grid(found, len(rows))
        centre = few[:, :2] * stride + origin
        boxes = corners(np.concatenate([centre, np.exp(few[:, 2:4]) * stride], axis=1))
        return detections(boxes, scores, few[:, 5:].argmax(axis=1), options)

    def columns(self, outputs: Mapping[str, Array]) -> Array:
        """See `Head.columns`."""
        columns: Array = outputs[self.output][0].T
        return columns

    def grid(
        self, found: NDArray[np.integer], boxes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Top-left corner [n, 2] and stride [n, 1], in pixels, of the cells numbered `found`.

        Args:
            found: int [n].
            boxes: how many cells there are.
        """
        strides = next(s for s in STRIDES if cells(self.size, s) == boxes)
        widths = np.array([-(-self.size[1] // stride) for stride in strides])
        starts = np.cumsum([0, *(cells(self.size, (stride,)) for stride in strides)])
        level = np.searchsorted(starts, found, side="right") - 1
        y, x = np.divmod(found - starts[level], widths[level])
        stride = np.array(strides, dtype=np.float32)[level][:, None]
        return np.stack([x, y], axis=1).astype(np.float32) * stride, stride
