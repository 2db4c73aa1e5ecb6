"""Decodes outputs of graphs that suppress duplicates. A row has a box, a score and a class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector
from fovea_engines.heads.evidence import (
    fractions,
    lower_class_ids,
    no_class_ids,
    no_corners,
    no_probability,
    pixels,
    ranks,
    turned,
)
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import choose, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array

MAX_CLASSES = 2**20
"""Upper limit for class ids. Rows with a larger or a negative id are dropped."""


class Rows(NamedTuple):
    """The rows of one image as the model returns them: boxes [n, 4], scores [n], class ids [n]."""

    boxes: Array
    scores: Array
    class_ids: Array


class Suppressed(Detector):
    """Decodes outputs of boxes, scores and class ids, [batch, rows, ...].

    Boxes are corners in pixels of the input, unless an attribute says otherwise. The graph has
    already suppressed duplicates, so `iou` and `agnostic` have no effect.

    Attributes:
        y_first: True if boxes are y1 x1 y2 x2; False if they are x1 y1 x2 y2.
        normalised: True if boxes are fractions of the input; False if they are in pixels.
        first_class: class id of the first class in the outputs, usually 0.
    """

    y_first: ClassVar[bool] = False
    normalised: ClassVar[bool] = False
    first_class: ClassVar[int] = 0

    @property
    def fields(self) -> tuple[str, str]:
        """Names of the scores and of the class ids, for messages."""
        return self.outputs[1], self.outputs[2]

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image. A negative class or a score of 0 marks padding."""
        boxes, scores, class_ids = (outputs[name][row] for name in self.outputs)
        return Rows(boxes, scores, class_ids)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores, classes or boxes are not in the range that this head
        expects.
        """
        rows = self.rows(outputs, 0)
        found = Rows(*(each[rows.class_ids != -1] for each in rows))
        scores, class_ids = self.fields
        sure = self._x_first(found.boxes[found.scores > 0])
        return (
            no_probability(found.scores, scores)
            or no_class_ids(found.class_ids, class_ids)
            or lower_class_ids(found.class_ids[found.scores > 0], self.first_class, class_ids)
            or (pixels if self.normalised else fractions)(sure)
            or no_corners(sure)
            or ranks(sure)
            or (None if self.normalised or self.size is None else turned(sure, self.size))
        )

    def has_evidence(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether there is a row that is not padding. Padding has class -1 or score 0."""
        rows = self.rows(outputs, 0)
        return bool(np.any((rows.scores > 0) & (rows.class_ids != -1)))

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the columns of the rows that are not padding. A score of NaN is not padding."""
        rows = self.rows(outputs, row)
        used = ~(rows.scores <= 0)
        for name, column in zip((f"output {self.outputs[0]}", *self.fields), rows, strict=True):
            yield name, column[used]

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        return self.objects(self.rows(outputs, row), options)[0]

    @np.errstate(invalid="ignore", over="ignore")
    def objects(self, rows: Rows, options: PredictOptions) -> tuple[Detections, NDArray[np.intp]]:
        """Return the detections of one image, and the index of each detection's row."""
        found = np.flatnonzero(rows.scores >= options.conf)
        boxes, scores, class_ids = (each[found].astype(np.float32, copy=False) for each in rows)
        class_ids = class_ids - self.first_class
        sound = (class_ids >= 0) & (class_ids < MAX_CLASSES)
        boxes, scores, class_ids = self._x_first(boxes[sound]), scores[sound], class_ids[sound]
        if self.normalised:
            assert self.size is not None, "families of fractions are sized"
            height, width = self.size
            boxes = boxes * np.array([width, height, width, height], np.float32)
        ids = class_ids.round().astype(np.int32)
        kept = choose(boxes, scores, ids, options, suppress=False)
        return take(boxes, scores, ids, kept), found[sound][kept]

    def _x_first(self, boxes: Array) -> Array:
        return boxes[:, [1, 0, 3, 2]] if self.y_first else boxes


class Columns(Suppressed):
    """Decodes one output, [batch, rows, columns].

    Attributes:
        box: index of the first of four box columns.
        score: index of the score column.
        class_id: index of the class id column.
    """

    box: ClassVar[int]
    score: ClassVar[int]
    class_id: ClassVar[int]

    @property
    def fields(self) -> tuple[str, str]:
        """Names of the score column and of the class id column, for messages."""
        return f"column {self.score}", f"column {self.class_id}"

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image."""
        return self.split(outputs[self.outputs[0]][row])

    def split(self, table: Array) -> Rows:
        """Return the rows of a table [rows, columns]."""
        boxes = table[:, self.box : self.box + 4]
        return Rows(boxes, table[:, self.score], table[:, self.class_id])
