"""Decodes models with two outputs before suppression: corners of boxes, and class probabilities.

Both outputs have a row for each cell of a grid.

    yolo-nas     YOLO-NAS: [n, cells, 4], [n, cells, classes]
    ppyoloe      PP-YOLOE and PP-YOLOE+: [n, cells, 4], [n, cells, classes] or [n, classes, cells]
    damo-yolo    DAMO-YOLO: [n, cells, classes], [n, cells, 4]

If names and metadata do not distinguish the families, the user must choose one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import STRETCHED, Head
from fovea_engines.heads.evidence import fractions, no_corners
from fovea_engines.heads.grid import off_grid
from fovea_engines.heads.scored_boxes import Level, ScoredBoxes
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.text import counted


class BoxesAndScores(ScoredBoxes):
    """Decodes boxes [batch, cells, 4], corners in pixels, and scores [batch, cells, classes].

    Attributes:
        named: name of the family in the metadata.
        boxes_first: True if the boxes are the first output. This matters if the scores have as many
            columns as the boxes.
        transposed: True if scores may be [batch, classes, cells].
        box_columns: number of columns of a box.
    """

    named: ClassVar[str]
    boxes_first: ClassVar[bool] = True
    transposed: ClassVar[bool] = False
    box_columns: ClassVar[int] = 4

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for two outputs with a row for each cell of one grid. Their names do not matter."""
        found = cls._boxes_and_scores(signature.outputs)
        if found is None:
            return OTHERS
        boxes, scores, classes = found
        if isinstance(evidence := signature.on_levels([boxes.shape[1]], cls.strides), str):
            return evidence
        if isinstance(count := signature.count_classes(classes), str):
            return count
        strength, why = evidence
        if signature.family == cls.named:
            strength, why = (
                Strength.METADATA,
                (f"{why}; the metadata names the family {signature.family}"),
            )
        elif signature.family:
            return f"the metadata names the family {signature.family}"
        return Fit((boxes.name, scores.name), count, f"{why}; {counted(count, 'class')}", strength)

    @classmethod
    def _boxes_and_scores(
        cls, outputs: Sequence[TensorSpec]
    ) -> tuple[TensorSpec, TensorSpec, int] | None:
        """Return the boxes, the scores and the number of classes. None if the shapes do not fit."""
        if len(outputs) != 2 or any(
            len(tensor.shape) != 3 or not tensor.dtype.startswith("float") for tensor in outputs
        ):
            return None
        in_order = outputs if cls.boxes_first else outputs[::-1]
        for boxes, scores in (in_order, in_order[::-1]):
            _, cells, columns = boxes.shape
            if columns != cls.box_columns:
                continue
            if scores.shape[1] == cells:
                return boxes, scores, scores.shape[2]
            if cls.transposed and scores.shape[2] == cells:
                return boxes, scores, scores.shape[1]
        return None

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities or boxes do not have the form that
        this head expects.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        boxes = outputs[self.outputs[0]][0]
        return fractions(boxes) or off_grid(boxes, corners=True) or no_corners(boxes)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return a single level: the scores [cells, classes] and the boxes."""
        boxes, scores = (outputs[name][row] for name in self.outputs)
        return [(scores if len(scores) == len(boxes) else scores.T, boxes)]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the values unchanged, because they are already corners in pixels."""
        return values


HEADS: tuple[type[Head], ...] = (
    # YOLO-NAS was trained on images that were resized to at most 636 pixels and padded to 640. This
    # preprocessing resizes an image to 640 pixels, which is less than 1 % larger.
    BoxesAndScores.as_family("yolo-nas", named="yolonas", preprocess={"unscale": "ratio"}),
    BoxesAndScores.as_family(
        "ppyoloe",
        named="ppyoloe",
        transposed=True,
        preprocess=STRETCHED,
        guessed="PP-YOLOE uses ImageNet's mean and std, but PP-YOLOE+ does not",
        variants=("0-to-1",),
    ),
    BoxesAndScores.as_family(
        "damo-yolo",
        named="damoyolo",
        boxes_first=False,
        preprocess={"scale": 1.0, "anchor": "top-left", "pad": 0},
        guessed="DAMO-YOLO letterboxes or stretches images, depending on its config",
        variants=("stretched",),
    ),
)
