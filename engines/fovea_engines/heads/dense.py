"""Decodes outputs with a box for every cell or anchor of a grid, which need suppression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, Layout, corners
from fovea_engines.heads.evidence import (
    fractions,
    no_corners,
    no_probabilities,
    no_sizes,
    objectness_first,
    usual,
    whole_numbers,
)
from fovea_engines.heads.grid import no_class, no_grid, off_cells, off_grid
from fovea_engines.heads.signature import Fit, Signature, Strength
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import choose, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array

_ANGLE_ROUNDING = 1e-2


class Dense(Detector):
    """Decodes one output whose columns are those of its `layout`, boxes in pixels of the input.

    The score is the probability of the best class, times the objectness where there is one.

    Attributes:
        per_cell: boxes of each cell.
        rare: a more usual family has an output of the same shape.
        extras: columns follow the classes, so that `num_classes` must be known.
    """

    duplicates: ClassVar[bool] = True
    layout: ClassVar[Layout]
    per_cell: ClassVar[int] = 1
    rare: ClassVar[bool] = False
    extras: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output with a column for each class, on a grid."""
        axis, others = cls.layout.axis, cls.layout.classes
        fit = signature.fit_grid(axis=axis, per_cell=cls.per_cell, others=others)
        if isinstance(fit, Fit) and cls.rare:
            return replace(fit, strength=Strength.RARE)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability of a class, and boxes of another form."""
        table = self._table(outputs[self.outputs[0]][0])[: self._end]
        boxes, layout = table[:4].T, self.layout
        if self.size is not None and (reason := no_grid(len(boxes), self.size, self.per_cell)):
            return reason
        if not layout.objectness and _ends_in_angles(table[4:]):
            return (
                f"column {len(table) - 1}, the last, holds angles of rotated boxes, not "
                "probabilities"
            )
        if (reason := no_probabilities(table[4:].T, 4)) is not None:
            return reason
        if (reason := no_classes(table[layout.classes :].T, layout.classes)) is not None:
            return reason
        if not layout.objectness:
            # Classes beside an objectness may be sure of anything where nothing is.
            reason = usual(table[4:].T, 4) or objectness_first(table[4:].T, 4)
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2 if layout.corners else boxes[:, :2]
        return (
            reason
            or fractions(boxes)
            or (None if layout.corners else no_sizes(boxes[:, 2:], 2))
            or off_grid(boxes, corners=layout.corners)
            or (no_corners(boxes) if layout.corners else None)
            or (None if self.size is None else off_cells(centres, self.size, self.per_cell))
        )

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        return self.objects(outputs[self.outputs[0]][row], options)[0]

    @np.errstate(invalid="ignore", over="ignore")
    def objects(
        self, output: Array, options: PredictOptions
    ) -> tuple[Detections, NDArray[np.float32]]:
        """Return one image's detections, and of each the columns after the classes, [n, extras]."""
        layout, end = self.layout, self._end
        table = self._table(output)
        found = (self.bound(table[:end]) >= options.conf).nonzero()[0]
        few = output.take(found, axis=1) if layout.axis == 1 else output[found].T
        few = few.astype(np.float32, copy=False)
        classes = few[layout.classes : end]
        scores, ids = np.maximum.reduce(classes), classes.argmax(axis=0)
        if layout.objectness:
            scores = few[4] * scores
        boxes = self.boxes(few[:4].T, found, table.shape[1])
        kept = choose(boxes, scores, ids, options)
        extras = few[len(few) if end is None else end :].take(kept, axis=1).T
        return take(boxes, scores, ids, kept), extras

    @property
    def _end(self) -> int | None:
        """Number of the first column after the classes; None where they are the last."""
        if not self.extras:
            return None
        assert self.num_classes is not None, "families with more columns say where classes end"
        return self.layout.classes + self.num_classes

    def bound(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return what the scores of all boxes cannot exceed, of a table [columns, boxes]."""
        # No class exceeds 1, so objectness rejects most boxes.
        return table[4] if self.layout.objectness else best_class(table[4:])

    def boxes(
        self, few: NDArray[np.float32], found: NDArray[np.intp], total: int
    ) -> NDArray[np.float32]:
        """Return corners [n, 4], in pixels, of the boxes at the indices `found` of all."""
        return few if self.layout.corners else corners(few)

    def _table(self, output: Array) -> NDArray[Any]:
        """Return one image's output as [columns, boxes]."""
        return output if self.layout.axis == 1 else output.T


def no_classes(columns: NDArray[Any], first: int) -> str | None:
    """Exclude probabilities, [boxes, n], of which one is a place, or of several one is 0 or 1."""
    several = columns.shape[1] > 1
    return no_class(columns, first) or (whole_numbers(columns, first) if several else None)


def _ends_in_angles(classes: NDArray[Any]) -> bool:
    """Return whether the last of the columns [classes, boxes] can be angles, but no probability.

    YOLO's oriented boxes have angles from -pi/4 to 3/4 pi.
    """
    if len(classes) < 2:
        return False
    low, high = float(classes[-1].min(initial=0)), float(classes[-1].max(initial=0))
    within = -math.pi / 4 <= low + _ANGLE_ROUNDING and high - _ANGLE_ROUNDING <= 3 * math.pi / 4
    return within and (low < -_ANGLE_ROUNDING or high > 1 + _ANGLE_ROUNDING)


def best_class(classes: Array) -> NDArray[np.floating]:
    """Return each cell's best class probability: float [cells] of [classes, cells]."""
    if classes.dtype == np.float16:
        # Non-negative float16 values sort like their bits, and numpy compares integers 80 times as
        # fast (measured: .06 ms for [80, 8400] instead of 5).
        best: NDArray[np.floating] = np.maximum.reduce(classes.view(np.int16)).view(np.float16)
    else:
        best = np.maximum.reduce(classes)
    return best
