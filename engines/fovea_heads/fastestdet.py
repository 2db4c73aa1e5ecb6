"""Decodes FastestDet: one map of [batch, 5 + classes, h, w] at stride 16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector, corners
from fovea_engines.detect.heads.evidence import no_probabilities, no_shares
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.plural import counted

OBJECTNESS, CLASS = 0.6, 0.4
"""Powers of both in the score."""


@dataclass(frozen=True, slots=True)
class FastestDet(Detector):
    """Decodes objectness, x y w h, and a softmax over the classes.

    Follows the project's documentation: the centre is cell + tanh in cells, the size is a sigmoid
    in fractions of the input, and the score is objectness^.6 x class^.4.
    """

    family: ClassVar[str] = "fastestdet"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "channels": "BGR"}
    sized: ClassVar[bool] = True
    duplicates: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map at stride 16, which other tasks have, too."""
        if len(signature.outputs) != 1 or len(signature.outputs[0].shape) != 4:
            return OTHERS
        [output] = signature.outputs
        evidence = signature.at_stride(output.shape[2:], 16)
        classes = signature.count_classes(output.shape[1], 5)
        if isinstance(evidence, str) or isinstance(classes, str):
            return OTHERS
        why = f"{evidence[1]}; {counted(classes, 'class')}"
        return Fit((output.name,), classes, why, Strength.RARE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude other scores."""
        table = self.columns(outputs)
        assert table is not None, "rows are not ranked"
        if (reason := no_probabilities(table[:1].T) or no_probabilities(table[5:].T, 5)) is None:
            shares = no_shares(table[5:].T)
            reason = shares and f"of the classes, {shares}"
        return reason

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        assert self.size is not None, "it is sized"
        table = outputs[self.outputs[0]][row]
        # No class exceeds 1, so objectness is an upper bound of the score.
        y, x = np.nonzero(table[0] >= options.conf ** (1 / OBJECTNESS))
        few = table[:, y, x].astype(np.float32)
        cell = np.stack([x, y]) + np.tanh(few[1:3])
        centre = cell / np.array(table.shape[:0:-1], np.float32)[:, None]
        size = 1 / (1 + np.exp(-few[3:5]))
        height, width = self.size
        pixels = np.array([[width], [height]] * 2, np.float32)
        boxes = corners((np.concatenate([centre, size]) * pixels).T)
        scores = few[0] ** OBJECTNESS * few[5:].max(axis=0) ** CLASS
        return detections(boxes, scores, few[5:].argmax(axis=0), options)

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the first image's map, its cells in a row."""
        table: Array = outputs[self.outputs[0]][0]
        return table.reshape(len(table), -1)
