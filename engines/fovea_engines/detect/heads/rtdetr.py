"""Decodes RT-DETR, D-FINE and DEIM with post-processing in the graph: labels, boxes, scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.heads.suppressed import Suppressed


@dataclass(frozen=True, slots=True)
class RtDetr(Suppressed):
    """Decodes boxes x1 y1 x2 y2 in pixels of the input, with class ids and scores.

    The graph takes the size that boxes are scaled to as a second input, which a build sets to that
    of the first. Queries do not double each other.
    """

    family: ClassVar[str] = "rtdetr"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "resample": "antialias"}
    guessed: ClassVar[str] = (
        "RT-DETR, D-FINE and DEIM take 0 to 1; DEIMv2 from S up takes ImageNet's mean and std"
    )
    variants: ClassVar[tuple[str, ...]] = ("mean-std",)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for outputs labels [batch, k], boxes [batch, k, 4] and scores [batch, k]."""
        named = signature.named("labels", "boxes", "scores")
        if isinstance(named, str):
            return named
        labels, boxes, scores = named
        if (len(labels.shape), len(boxes.shape), len(scores.shape)) != (2, 3, 2):
            return OTHERS
        if "int" not in labels.dtype or boxes.shape[2] not in (4, -1):
            return OTHERS
        if signature.family:
            return f"the metadata says {signature.family}"
        why = "class ids, boxes and scores, as RT-DETR's exporters name them"
        outputs = (boxes.name, scores.name, labels.name)
        return Fit(outputs, signature.num_labels, why, Strength.NAMES)
