"""Decodes distances as distributions: NanoDet, NanoDet-Plus and PicoDet.

Follows Generalized Focal Loss (arXiv 2006.04388): the distance of a side from the cell's centre is
the expectation of a softmax over 0 to 7, times the stride.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import IMAGENET, MMDETECTION
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.grid import around
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes
from fovea_preprocess.plural import counted

BINS = np.arange(8, dtype=np.float32)
"""Distances, in strides."""

SIDES = 4 * len(BINS)
"""Columns of the logits of left, top, right and bottom."""


@dataclass(frozen=True, slots=True)
class NanoDet(ScoredBoxes):
    """Decodes scores [batch, cells, classes] and logits [batch, cells, 32] of each level.

    So the first NanoDet-m was exported: scores of all levels, then logits of all levels. Its cells
    have their centre at (stride - 1) / 2, which is half a pixel less than those of later versions.

    Attributes:
        centre: of a cell, in strides from its corner.
        shift: of the centre of a cell, pixels.
    """

    family: ClassVar[str] = "nanodet"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "pad": 0,
        "resample": "area",
        **MMDETECTION,
    }
    guessed: ClassVar[str] = "NanoDet keeps the aspect and pads, or stretches, by its config"
    variants: ClassVar[tuple[str, ...]] = ("stretched",)
    sized: ClassVar[bool] = True
    centre: ClassVar[float] = 0.5
    shift: ClassVar[float] = -0.5

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for scores and logits of each level."""
        count, tensors = len(cls.strides), signature.outputs
        logits = signature.by_columns(SIDES)[-count:]
        scores = tuple(tensor for tensor in tensors if tensor not in logits)
        if not len(scores) == len(logits) == count or any(len(each.shape) != 3 for each in tensors):
            return OTHERS
        if len({each.shape[2] for each in scores}) != 1:
            return OTHERS
        boxes = [each.shape[1] for each in scores]
        if boxes != [each.shape[1] for each in logits]:
            return OTHERS
        if isinstance(evidence := signature.on_levels(boxes, cls.strides), str):
            return evidence
        if isinstance(classes := signature.count_classes(scores[0].shape[2]), str):
            return classes
        strength, why = evidence
        outputs = tuple(each.name for each in (*scores, *logits))
        return Fit(outputs, classes, f"{why}; {counted(classes, 'class')}", strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability, and what is no logit."""
        if (reason := super(NanoDet, self).contradiction(outputs)) is not None:
            return reason
        logits = np.concatenate([logits for _, logits in self.levels(outputs, 0)])
        reasons = [no_logits(column[:, None]) for column in logits.T]
        reason = next(filter(None, reasons), None)
        return reason and f"of the last {SIDES} columns, {reason}"

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return scores and logits of each level."""
        tensors = [outputs[name][row] for name in self.outputs]
        half = len(tensors) // 2
        return list(zip(tensors[:half], tensors[half:], strict=True))

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners of boxes around the centres of their cells."""
        logits = values.reshape(-1, 4, len(BINS))
        powers = np.exp(logits - logits.max(axis=2, keepdims=True))
        distances = powers @ BINS / powers.sum(axis=2)
        places, strides = self.cells(found)
        return around((places + self.centre) * strides + self.shift, distances * strides)


@dataclass(frozen=True, slots=True)
class PicoDetRaw(NanoDet):
    """Decodes what PicoDet gives before its suppression: four levels."""

    family: ClassVar[str] = "picodet-raw"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        **IMAGENET,
    }
    guessed: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ()
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32, 64)
    shift: ClassVar[float] = 0.0


@dataclass(frozen=True, slots=True)
class NanoDetJoined(NanoDet):
    """Decodes what later versions of NanoDet-m export: [batch, cells, classes + 32]."""

    family: ClassVar[str] = "nanodet-joined"
    shift: ClassVar[float] = 0.0

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one tensor, whose shape is also that of a YOLOX with more classes."""
        if isinstance(output := signature.single(), str):
            return output
        evidence = signature.on_levels([output.shape[1]], cls.strides)
        if isinstance(evidence, str) or 0 <= output.shape[2] <= SIDES:
            return OTHERS
        if isinstance(classes := signature.count_classes(output.shape[2], SIDES), str):
            return classes
        why = f"{evidence[1]}; {counted(classes, 'class')}"
        return Fit((output.name,), classes, why, Strength.RARE)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return all levels as one."""
        table = outputs[self.outputs[0]][row]
        return [(table[:, :-SIDES], table[:, -SIDES:])]


@dataclass(frozen=True, slots=True)
class NanoDetPlus(NanoDetJoined):
    """Decodes NanoDet-Plus: four levels, and distances from the corner of a cell."""

    family: ClassVar[str] = "nanodet-plus"
    preprocess: ClassVar[Mapping[str, Any]] = {**NanoDet.preprocess, "fit": "stretch"}
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32, 64)
    centre: ClassVar[float] = 0.0
