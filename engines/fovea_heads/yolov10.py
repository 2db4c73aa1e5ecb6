"""Decodes the end-to-end head of YOLOv10 and v26, and exports that include NMS: [batch, k, 6]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import TensorSpec
from fovea_heads.suppressed import Columns

MOST_ROWS = 1000
"""Exports end in the best 100 to 1000 boxes; more rows are a grid of one class."""


@dataclass(frozen=True, slots=True)
class YoloV10(Columns):
    """Decodes columns x1 y1 x2 y2 in pixels of the input, score, class id.

    Attributes:
        order: of the columns, for people.
    """

    family: ClassVar[str] = "yolov10"
    box: ClassVar[int] = 0
    score: ClassVar[int] = 4
    class_id: ClassVar[int] = 5
    order: ClassVar[str] = "x1 y1 x2 y2 score class"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, k, 6]."""
        output = signature.single()
        return output if isinstance(output, str) else cls.fit_rows(signature, output)

    @classmethod
    def fit_rows(cls, signature: Signature, output: TensorSpec, more: int = 0) -> Fit | str:
        """Check for rows of six columns, and `more` after them."""
        _, boxes, columns = output.shape
        if signature.family == "RTDETRDecoder":
            return "the metadata says RTDETRDecoder"
        after = f" and {more} more" if more else ""
        if columns != 6 + more:
            few = boxes <= MOST_ROWS and (boxes == -1 or columns <= boxes)
            row = f"a row has {columns} numbers, not {cls.order}{after}"
            return row if few else OTHERS
        if boxes > MOST_ROWS:
            return f"it has {MOST_ROWS} rows at most, and the model {boxes}"
        sure = boxes > 0 or bool(signature.end_to_end)
        rows = "a dynamic number of" if boxes == -1 else str(boxes)
        return Fit(
            (output.name,),
            signature.num_labels,
            f"{rows} rows of {cls.order}{after}",
            Strength.SHAPE if sure else Strength.POSSIBLE,
        )
