"""Decodes RT-DETR as Ultralytics exports it: one output, boxes as fractions of the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector, corners
from fovea_engines.detect.heads.evidence import (
    no_class_ids,
    no_probabilities,
    ranks,
    unranked,
    usual,
    whole_numbers,
)
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_heads.queries import MOST_QUERIES
from fovea_heads.query_evidence import (
    beyond,
    centred_fractions,
    neighbours,
    no_queries,
    shares,
)
from fovea_heads.suppressed import MOST_CLASSES
from fovea_preprocess.plural import counted

_HEAD = "RTDETRDecoder"
# Its exports have 300 queries; fewer rows are the characters of a text, for example.
_LEAST_QUERIES = 100
# LVIS has 1203; more columns are the boxes of another family.
_MOST_CLASSES = 1300


@dataclass(frozen=True, slots=True)
class UltralyticsRtDetr(Detector):
    """Decodes what 8.4 exports, [batch, k, 6]: columns cx cy w h, 0 to 1, score, class id.

    Queries do not double each other, so `iou` and `agnostic` have no effect.
    """

    family: ClassVar[str] = "ultralytics-rtdetr"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch"}
    sized: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output of few rows; the metadata, where it is there, names the head."""
        if isinstance(output := signature.single(), str):
            return output
        if signature.family not in ("", _HEAD):
            return f"the metadata says {signature.family}"
        if output.shape[1] > MOST_QUERIES:
            return OTHERS
        strength = Strength.METADATA if signature.family else Strength.RARE
        return cls._fit(signature, output, strength)

    @classmethod
    def _fit(cls, signature: Signature, output: TensorSpec, strength: Strength) -> Fit | str:
        columns = output.shape[2]
        if columns > MOST_QUERIES:
            return OTHERS
        if columns != 6:
            return f"a row has {columns} numbers, not cx cy w h score class"
        why = "rows of cx cy w h score class"
        if strength is Strength.METADATA:
            why += f"; the metadata says {_HEAD}"
        return Fit((output.name,), signature.num_labels, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude rows of another order, and boxes that are no fractions of the input."""
        rows = outputs[self.outputs[0]][0]
        boxes = rows[rows[:, 4] > 0, :4]
        return (
            no_probabilities(rows[:, 4:5], first=4)
            or no_class_ids(rows[:, 5], "column 5")
            or centred_fractions(boxes)
            or beyond(boxes)
            or ranks(boxes)
            or unranked(rows[:, 4], "column 4")
        )

    def tells(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether there is a row: padding has only scores of 0."""
        return bool(np.any(outputs[self.outputs[0]][..., 4:]))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        rows = outputs[self.outputs[0]][row]
        few = rows[rows[:, 4] >= options.conf].astype(np.float32, copy=False)
        few = few[(few[:, 5] >= 0) & (few[:, 5] < MOST_CLASSES)]
        return self._detections(few, few[:, 4], few[:, 5].round().astype(np.int32), options)

    @np.errstate(invalid="ignore", over="ignore")
    def _detections(
        self, rows: Array, scores: Array, class_ids: Array, options: PredictOptions
    ) -> Detections:
        assert self.size is not None, "it is sized"
        boxes = corners(rows[:, :4] * np.array(self.size[::-1] * 2, np.float32))
        return detections(boxes, scores, class_ids, options, suppress=False)


@dataclass(frozen=True, slots=True)
class RawUltralyticsRtDetr(UltralyticsRtDetr):
    """Decodes what versions before 8.4 export, [batch, queries, 4 + classes]: probabilities."""

    family: ClassVar[str] = "ultralytics-rtdetr-raw"

    @classmethod
    def _fit(cls, signature: Signature, output: TensorSpec, strength: Strength) -> Fit | str:
        _, rows, columns = output.shape
        if isinstance(count := signature.count_classes(columns, 4), str):
            return count
        if count > _MOST_CLASSES:
            return OTHERS
        if strength is not Strength.METADATA:
            if rows < _LEAST_QUERIES:
                few = "as many as it finds" if rows == -1 else rows
                return f"it has {_LEAST_QUERIES} queries at least, and the model {few}"
            if (rows, columns) == signature.size:
                return "the output has the size of the input, as a map has"
        why = f"queries of {counted(count, 'class')} as cx cy w h and probabilities"
        return Fit((output.name,), count, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude columns that are no probabilities, and boxes that are no fractions."""
        rows = outputs[self.outputs[0]][0]
        classes = rows[:, 4:]
        return (
            no_probabilities(classes, 4)
            or whole_numbers(classes, 4)
            or usual(classes, 4)
            or ("all columns add up to 1, as a softmax's do" if shares(rows) else None)
            or centred_fractions(rows[:, :4])
            or neighbours(rows[:, :4])
            or beyond(rows[:, :4])
            or no_queries(rows)
        )

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        rows = outputs[self.outputs[0]][row]
        few = rows[rows[:, 4:].max(axis=1) >= options.conf].astype(np.float32, copy=False)
        classes = few[:, 4:]
        return self._detections(few, classes.max(axis=1), classes.argmax(axis=1), options)
