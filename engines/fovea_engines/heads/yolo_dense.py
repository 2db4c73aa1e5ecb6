"""Decodes YOLO models with one output table: a box and class probabilities for each cell.

    yolov8            YOLOv8, v3u, v5u, v9, 11, 12, 26 without its NMS-free head
                      [n, 4 + classes, cells]: cx cy w h, classes
    yolov5            YOLOv5, v7, v3
                      [n, 3 x cells, 5 + classes]: cx cy w h, objectness, classes
    yolov6            YOLOv6
                      [n, cells, 5 + classes]: cx cy w h, 1, classes
    yolox             YOLOX
                      [n, cells, 5 + classes]: offsets, logarithms, objectness, classes
    yolox-decoded     YOLOX exported with --decode_in_inference
                      [n, cells, 5 + classes]: cx cy w h, objectness, classes
    libreyolo-yolo9   YOLOv9 by LibreYOLO
                      [n, 4 + classes, cells]: x1 y1 x2 y2, classes
    rtmdet, picodet   RTMDet and PicoDet by LibreYOLO
                      [n, cells, 4 + classes]: x1 y1 x2 y2, classes

Boxes are in pixels of the input, except for `yolox`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import MMDETECTION, STRETCHED, YOLOX, Head, Layout, corners
from fovea_engines.heads.dense import Dense, best_class, no_classes
from fovea_engines.heads.evidence import (
    no_logarithms,
    no_objectness,
    no_probabilities,
    unsure_beside_objectness,
)
from fovea_engines.heads.grid import grid, no_grid, no_offsets
from fovea_engines.heads.signature import STRIDES, Fit, Signature, Strength, cells
from fovea_engines.session import Array

_OBJECTNESS = Layout(axis=2, objectness=True)


class YoloV8(Dense):
    """Decodes cx cy w h in pixels of the input, then a probability for each class."""

    family = "yolov8"
    layout = Layout(axis=1)


class WithObjectness(Dense):
    """Decodes cx cy w h in pixels of the input, objectness, and a probability for each class."""

    layout = _OBJECTNESS

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if there is no objectness before the classes, or if `Dense` finds a
        reason.
        """
        return super().contradiction(outputs) or no_objectness(self._classes(outputs), 4)

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if class probabilities are as low as in models without an objectness.
        """
        return unsure_beside_objectness(self._classes(outputs))

    def _classes(self, outputs: Mapping[str, Array]) -> Array:
        classes: Array = self._table(outputs[self.outputs[0]][0])[4 : self._end].T
        return classes


class YoloV5(WithObjectness):
    """Decodes YOLOv5, v7 and v3. Each cell has three anchors."""

    family = "yolov5"
    per_cell = 3


class YoloV6(Dense):
    """Decodes YOLOv6. Its objectness is always 1."""

    family = "yolov6"
    preprocess: ClassVar[Mapping[str, Any]] = {"unscale": "ratio"}
    layout = _OBJECTNESS
    rare = True

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the objectness is below 1 for a box, or if `Dense` finds a reason.
        """
        lowest = outputs[self.outputs[0]][0, :, 4].min(initial=1)
        if lowest < 1:
            return f"column 4 is always 1 in YOLOv6, but {lowest:.3g} for a box of this model"
        return super().contradiction(outputs)

    def bound(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the best class probability of each box. The objectness is always 1."""
        return best_class(table[5:])


class YoloX(WithObjectness):
    """Decodes YOLOX: offsets x y in cells, and logarithms of w h in strides.

    The formulas are from the YOLOX paper (arXiv 2107.08430): a centre is (offset + cell) x stride,
    and a size is exp(logarithm) x stride.
    """

    family = "yolox"
    preprocess = YOLOX
    sized = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, cells, 5 + classes]."""
        fit = super().fit(signature)
        if isinstance(fit, str):
            return fit
        if fit.strength is Strength.POSSIBLE and signature.metadata.keys() & {"names", "stride"}:
            return (
                "the number of boxes is unknown, and the model has metadata, unlike exports of "
                "YOLOX"
            )
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if boxes are decoded already, or scores are not probabilities.
        """
        rows = outputs[self.outputs[0]][0]
        assert self.size is not None, "it is sized"
        return (
            no_grid(len(rows), self.size, self.per_cell)
            or no_logarithms(rows[:, 2:4], 2)
            or no_offsets(rows[:, :4], 0)
            or no_probabilities(rows[:, 4:], 4)
            or no_classes(rows[:, 5:], 5)
            or no_objectness(rows[:, 4:], 4)
        )

    def boxes(
        self, few: NDArray[np.float32], found: NDArray[np.intp], total: int
    ) -> NDArray[np.float32]:
        """Return corners in pixels. `Dense.boxes` describes the arguments."""
        assert self.size is not None, "it is sized"
        strides = next(s for s in STRIDES if cells(self.size, s) == total)
        places, steps = (table[found] for table in grid(self.size, strides))
        centre, size = (few[:, :2] + places) * steps, np.exp(few[:, 2:]) * steps
        return corners(np.concatenate([centre, size], axis=1))


class DecodedYoloX(WithObjectness):
    """Decodes exports of YOLOX that contain the decoding of boxes to pixels."""

    family = "yolox-decoded"
    preprocess = YOLOX
    rare = True

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if boxes are not decoded, or the objectness is constant as in YOLOv6.
        """
        rows = outputs[self.outputs[0]][0]
        if (rows[:, 4] == 1).all():
            return "column 4 is 1 for every box, as in YOLOv6"
        if (lowest := rows[:, 2:4].min(initial=0)) < 0:
            return f"columns 2 and 3 are not sizes in pixels: the smallest is {lowest:.3g}"
        return super().contradiction(outputs)


class LibreYolo(Dense):
    """Decodes x1 y1 x2 y2 and probabilities of models with LibreYOLO's metadata.

    Attributes:
        named: name of the family in the metadata.
    """

    rare = True
    named: ClassVar[str]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the layout. If the metadata names a family, check the name."""
        fit = super().fit(signature)
        if isinstance(fit, str) or not signature.family:
            return fit
        if signature.family != cls.named:
            return f"the metadata names the family {signature.family}"
        why = f"{fit.why}; the metadata names the family {signature.family}"
        return replace(fit, strength=Strength.METADATA, why=why)


_TOP_LEFT: Mapping[str, Any] = {"anchor": "top-left", "unscale": "ratio"}
_CORNERS_LAST = Layout(axis=2, corners=True)

HEADS: tuple[type[Head], ...] = (
    YoloV8,
    YoloV5,
    YoloV6,
    YoloX,
    DecodedYoloX,
    LibreYolo.as_family(
        "libreyolo-yolo9",
        named="yolo9",
        layout=Layout(axis=1, corners=True),
        preprocess=_TOP_LEFT,
    ),
    LibreYolo.as_family(
        "rtmdet",
        named="rtmdet",
        layout=_CORNERS_LAST,
        preprocess={**_TOP_LEFT, "resample": "antialias", **MMDETECTION},
    ),
    LibreYolo.as_family("picodet", named="picodet", layout=_CORNERS_LAST, preprocess=STRETCHED),
)
