"""Decodes the raw grid head of YOLOX: [batch, cells, 5 + classes]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Head, Layout, corners
from fovea_engines.detect.heads.signature import STRIDES, Fit, Signature, cells
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class YoloX(Head):
    """Decodes columns offset x y in cells, log w h in strides, objectness and classes.

    Follows the YOLOX paper (arXiv 2107.08430): (offset + cell) x stride, exp(log) x stride.
    Objectness and classes are already probabilities; the score is their product.
    """

    family: ClassVar[str] = "yolox"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "channels": "BGR",
        "scale": 1.0,
        "anchor": "top-left",
    }
    layout: ClassVar[Layout | None] = Layout(axis=2, objectness=True)

    size: tuple[int, int]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, cells, 5 + classes]."""
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
        """Return a head for the named output and the size of its input."""
        if size is None:
            raise UnsupportedModel(
                "a YOLOX grid is decoded with the input's size, which is dynamic: "
                "build with --size HEIGHTxWIDTH"
            )
        return cls(output, size)

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        rows = outputs[self.output][row]
        # No class exceeds 1, so objectness is an upper bound of the score and rejects most rows.
        found = np.flatnonzero(rows[:, 4] >= options.conf)
        few = rows[found].astype(np.float32, copy=False)
        scores = few[:, 4] * few[:, 5:].max(axis=1)
        origin, stride = self.grid(found, len(rows))
        centre = few[:, :2] * stride + origin
        boxes = corners(np.concatenate([centre, np.exp(few[:, 2:4]) * stride], axis=1))
        return detections(boxes, scores, few[:, 5:].argmax(axis=1), options)

    def grid(
        self, found: NDArray[np.integer], boxes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return origin and stride of cells, as `OnGrid`."""
        strides = next(s for s in STRIDES if cells(self.size, s) == boxes)
        widths = np.array([-(-self.size[1] // stride) for stride in strides])
        starts = np.cumsum([0, *(cells(self.size, (stride,)) for stride in strides)])
        level = np.searchsorted(starts, found, side="right") - 1
        y, x = np.divmod(found - starts[level], widths[level])
        stride = np.array(strides, dtype=np.float32)[level][:, None]
        return np.stack([x, y], axis=1).astype(np.float32) * stride, stride
