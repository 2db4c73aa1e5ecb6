"""Decodes detectors of PaddleDetection as paddle2onnx exports them with suppression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature
from fovea_engines.session import Array
from fovea_heads.libreyolo import PicoDet
from fovea_heads.suppressed import Columns, Rows


@dataclass(frozen=True, slots=True)
class Paddle(Columns):
    """Decodes class id, score, x1 y1 x2 y2 [k, 6], and int32 [images], the numbers of rows.

    Rows of class -1 fill up. The graph divides boxes by the input `scale_factor`, so that of 1
    leaves them in pixels of the input. Format: PaddleDetection, deploy/EXPORT_MODEL.md, and the
    operator multiclass_nms3.
    """

    family: ClassVar[str] = "paddle"
    preprocess: ClassVar[Mapping[str, Any]] = PicoDet.preprocess
    guessed: ClassVar[str] = (
        "PicoDet and PP-YOLOE take ImageNet's mean and std; PP-YOLOE+ and RT-DETR take neither"
    )
    variants: ClassVar[tuple[str, ...]] = ("0-to-1",)
    box: ClassVar[int] = 2
    score: ClassVar[int] = 1
    class_id: ClassVar[int] = 0

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for rows, and the number of rows."""
        by_kind = {(len(one.shape), one.dtype[:3]): one for one in signature.outputs}
        rows, count = by_kind.get((2, "flo")), by_kind.get((1, "int"))
        if len(signature.outputs) != 2 or rows is None or count is None:
            return OTHERS
        if rows.shape[1] not in (-1, 6):
            return f"a row has {rows.shape[1]} numbers, not class score x1 y1 x2 y2"
        why = "rows of class, score, x1 y1 x2 y2, and their number"
        return Fit((rows.name, count.name), signature.num_labels, why)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return one image's rows, which lie behind those of the images before it."""
        table, counts = (outputs[name] for name in self.outputs)
        first, last = (int(counts[:images].clip(0).sum()) for images in (row, row + 1))
        return self.split(table[first:last])
