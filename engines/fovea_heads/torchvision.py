"""Decodes torchvision's detectors: Faster R-CNN, RetinaNet, SSD, FCOS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_heads.suppressed import Rows, Suppressed


@dataclass(frozen=True, slots=True)
class Torchvision(Suppressed):
    """Decodes boxes [k, 4], scores [k] and int64 labels [k] of one image.

    Label 0 is the background, which is never found, so ids are those of the training. The graph
    resizes and normalises by itself; images of a batch it pads at the right and bottom, near the
    mean colour. Format: the docs of torchvision.models.detection.
    """

    family: ClassVar[str] = "torchvision"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left"}
    guessed: ClassVar[str] = "SSD and SSDlite stretch the image, and the others keep its aspect"
    variants: ClassVar[tuple[str, ...]] = ("stretched",)
    resizes: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three outputs without a batch."""
        if len(signature.outputs) != 3:
            return OTHERS
        if signature.beside:
            return f"torchvision's take no {signature.beside[0]} beside the image"
        by_kind = {(len(one.shape), one.dtype[:5]): one for one in signature.outputs}
        found = [by_kind.get(kind) for kind in ((2, "float"), (1, "float"), (1, "int64"))]
        boxes, scores, labels = found
        if boxes is None or scores is None or labels is None or boxes.shape[1] not in (-1, 4):
            return OTHERS
        names = boxes.name, scores.name, labels.name
        named = names == ("boxes", "scores", "labels")
        strength = Strength.NAMES if named else Strength.SHAPE
        return Fit(names, signature.num_labels, "rows of one image: box, score, label", strength)

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Doubt rows of the background, which torchvision never returns."""
        rows = self.rows(outputs, 0)
        if np.any((rows.class_ids == 0) & (rows.scores > 0)):
            return f"{self.fields[1]} has a class 0, which is torchvision's background"
        return super(Torchvision, self).doubt(outputs)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the one image's rows."""
        boxes, scores, labels = (outputs[name] for name in self.outputs[:3])
        return Rows(boxes, scores, labels)
