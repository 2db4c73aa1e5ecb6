"""Decodes RT-DETR, D-FINE and DEIM with post-processing in the graph: labels, boxes, scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_heads.suppressed import Rows, Suppressed

SIZES = "orig_target_sizes"
"""The input beside the image, by which the graph scales its boxes."""


@dataclass(frozen=True, slots=True)
class RtDetr(Suppressed):
    """Decodes boxes x1 y1 x2 y2 in pixels of the input, with class ids and scores.

    The graph takes the size that boxes are scaled to as a second input, which a build sets to that
    of the first. Queries do not double each other. Some exporters drop the batch of one image:
    labels [k], boxes [k, 4] and scores [k].
    """

    family: ClassVar[str] = "rtdetr"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "antialias",
        # Those of a letterbox are as in onnx_inf.py of D-FINE and DEIMv2.
        "pad": 0,
        "rounding": "down",
        "unscale": "ratio",
    }
    guessed: ClassVar[str] = (
        "RT-DETR, D-FINE and DEIM take 0 to 1, and DEIMv2 from S up takes ImageNet's mean and std; "
        "all are trained on stretched images, and onnx_inf.py of D-FINE and DEIMv2 letterboxes them"
    )
    variants: ClassVar[tuple[str, ...]] = ("mean-std", "letterboxed", "letterboxed-mean-std")

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for labels, boxes and scores, with a batch or beside an input of sizes."""
        named = signature.named("labels", "boxes", "scores")
        if isinstance(named, str):
            return named
        labels, boxes, scores = named
        ranks = len(labels.shape), len(boxes.shape), len(scores.shape)
        of_one = ranks == (1, 2, 1) and (SIZES in signature.beside or signature.forced)
        if ranks != (2, 3, 2) and not of_one:
            return OTHERS
        if "int" not in labels.dtype or boxes.shape[-1] not in (4, -1):
            return OTHERS
        if signature.family:
            return f"the metadata says {signature.family}"
        why = "class ids, boxes and scores, as RT-DETR's exporters name them"
        outputs = (boxes.name, scores.name, labels.name)
        return Fit(outputs, signature.num_labels, why, Strength.NAMES)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return one image's rows; without a batch, they are those of the only image."""
        found = Rows(*(outputs[name] for name in self.outputs))
        return found if found.scores.ndim == 1 else Rows(*(each[row] for each in found))
