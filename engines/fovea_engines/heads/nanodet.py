"""Decodes NanoDet, NanoDet-Plus and PicoDet before suppression.

These models predict a distribution for each distance between a cell and a side of a box.

    nanodet          the first NanoDet-m: scores [n, cells, classes] of each of three levels, then
                     their logits [n, cells, 32]
    picodet-raw      PicoDet: scores and logits of each of four levels
    nanodet-joined   later versions of NanoDet-m: [n, cells, classes + 32] for three levels
    nanodet-plus     NanoDet-Plus: [n, cells, classes + 32] for four levels

The source is Generalized Focal Loss (arXiv 2006.04388). The distance of a side from the cell's
centre is the expectation of a softmax over 0 to 7, times the stride.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import MMDETECTION, STRETCHED, Head
from fovea_engines.heads.evidence import no_logits
from fovea_engines.heads.grid import around
from fovea_engines.heads.scored_boxes import Level, ScoredBoxes
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_preprocess.text import counted

BINS = np.arange(8, dtype=np.float32)
"""Possible distances in a distribution, in strides."""

SIDES = 4 * len(BINS)
"""Number of columns for a box: the logits for the left, top, right and bottom distances."""


class Distributions(ScoredBoxes):
    """Decodes scores [batch, cells, classes] and logits [batch, cells, 32] of each level.

    Attributes:
        centre: position of a cell's centre, in strides from its corner.
        shift: number of pixels that is added to the position of a cell's centre.
    """

    sized = True
    centre: ClassVar[float] = 0.5
    shift: ClassVar[float] = 0.0

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
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities or the other columns are not logits.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        logits = np.concatenate([logits for _, logits in self.levels(outputs, 0)])
        reasons = [no_logits(column[:, None]) for column in logits.T]
        reason = next(filter(None, reasons), None)
        return reason and f"last {SIDES} columns: {reason}"

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return scores and logits of each level."""
        tensors = [outputs[name][row] for name in self.outputs]
        half = len(tensors) // 2
        return list(zip(tensors[:half], tensors[half:], strict=True))

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. Distances are measured from the centres of the cells."""
        logits = values.reshape(-1, 4, len(BINS))
        powers = np.exp(logits - logits.max(axis=2, keepdims=True))
        distances = powers @ BINS / powers.sum(axis=2)
        places, strides = self.cells(found)
        return around((places + self.centre) * strides + self.shift, distances * strides)


class JoinedDistributions(Distributions):
    """Decodes scores and logits in one tensor, [batch, cells, classes + 32]."""

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output. A YOLOX with more classes has an output of the same shape."""
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
        """Return a single level with scores and logits."""
        table = outputs[self.outputs[0]][row]
        return [(table[:, :-SIDES], table[:, -SIDES:])]


_NANODET: Mapping[str, Any] = {
    "preprocess": {"pad": 0, "resample": "area", **MMDETECTION},
    "guessed": "NanoDet letterboxes or stretches images, depending on its config",
    "variants": ("stretched",),
}
_FOUR = (8, 16, 32, 64)

HEADS: tuple[type[Head], ...] = (
    # In the first version, the centre of a cell is at (stride - 1) / 2. This is half a pixel less
    # than in later versions.
    Distributions.as_family("nanodet", shift=-0.5, **_NANODET),
    Distributions.as_family("picodet-raw", strides=_FOUR, preprocess=STRETCHED),
    JoinedDistributions.as_family("nanodet-joined", **_NANODET),
    # NanoDet-Plus measures distances from the corner of a cell.
    JoinedDistributions.as_family(
        "nanodet-plus",
        strides=_FOUR,
        centre=0.0,
        **{**_NANODET, "preprocess": {**_NANODET["preprocess"], "fit": "stretch"}},
    ),
)
