"""Decodes detectors of MMDetection as MMDeploy exports them: dets and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fovea_engines.detect.heads.base import MMDETECTION
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_heads.suppressed import Rows, Suppressed


@dataclass(frozen=True, slots=True)
class MmDeploy(Suppressed):
    """Decodes x1 y1 x2 y2 score [batch, k, 5] and integer class ids [batch, k].

    Rows of score 0, or of class -1, fill up. Format: the docs of MMDeploy, "How to support new
    models", and its mmdet ONNX Runtime tests.
    """

    family: ClassVar[str] = "mmdeploy"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "rounding": "nearest",
        **MMDETECTION,
    }
    guessed: ClassVar[str] = (
        "most configurations of MMDetection have this mean and std, and pad at the right and bottom"
    )
    variants: ClassVar[tuple[str, ...]] = ("mean-std", "stretched")

    @property
    def fields(self) -> tuple[str, str]:
        """A column of one output, and the other."""
        dets, labels = self.outputs[:2]
        return f"column 4 of {dets}", labels

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for boxes with a score, and integers."""
        if len(signature.outputs) != 2:
            return OTHERS
        labels, dets = sorted(signature.outputs, key=lambda tensor: len(tensor.shape))
        if len(labels.shape) != 2 or len(dets.shape) != 3 or not labels.dtype.startswith("int"):
            return OTHERS
        if dets.shape[2] not in (-1, 5) or not dets.dtype.startswith("float"):
            return OTHERS
        named = (dets.name, labels.name) == ("dets", "labels")
        strength = Strength.NAMES if named else Strength.SHAPE
        why = "rows of x1 y1 x2 y2 score, and a class id each"
        return Fit((dets.name, labels.name), signature.num_labels, why, strength)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return one image's rows."""
        dets, labels = (outputs[name][row] for name in self.outputs[:2])
        return Rows(dets[:, :4], dets[:, 4], labels)
