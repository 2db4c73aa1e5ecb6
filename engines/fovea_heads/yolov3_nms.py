"""Decodes YOLOv3 with its suppression, of the ONNX model zoo: boxes, scores, and which are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_heads.suppressed import Rows, Suppressed

_LAYER = "yolonms_layer"


@dataclass(frozen=True, slots=True)
class YoloV3Nms(Suppressed):
    """Decodes y1 x1 y2 x2 [batch, boxes, 4], scores [batch, classes, boxes] and indices [k, 3].

    An index is of the image, the class and the box; tiny models have them as [1, k, 3]. The graph
    puts boxes into the image of `image_shape`: that of its own input leaves them in its pixels.
    """

    family: ClassVar[str] = "yolov3-nms"
    preprocess: ClassVar[Mapping[str, Any]] = {"pad": 128}
    y_first: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the three tensors, by the name of the layer that makes them."""
        names = tuple(tensor.name for tensor in signature.outputs)
        kinds = [tensor.dtype[:3] for tensor in signature.outputs]
        if kinds != ["flo", "flo", "int"]:
            return OTHERS
        boxes, scores, kept = signature.outputs
        if len(boxes.shape) != 3 or len(scores.shape) != 3:
            return OTHERS
        if boxes.shape[2] not in (-1, 4) or kept.shape[-1] not in (-1, 3):
            return OTHERS
        if not (signature.forced or all(name.startswith(_LAYER) for name in names)):
            return OTHERS
        classes = signature.num_labels if scores.shape[1] == -1 else scores.shape[1]
        if signature.num_labels not in (None, classes):
            return f"it has {classes} classes, and the metadata or --labels name others"
        why = f"boxes, scores and indices of the layer {_LAYER}"
        return Fit(names, classes, why, Strength.NAMES)

    @property
    def fields(self) -> tuple[str, str]:
        """The scores, and a column of the indices."""
        return self.outputs[1], f"column 1 of {self.outputs[2]}"

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return one image's rows that are kept."""
        boxes, scores = (outputs[name][row] for name in self.outputs[:2])
        indices = outputs[self.outputs[2]].reshape(-1, 3)
        limits = np.array([row, 0, 0]), np.array([row, *scores.shape[:2]]) - [0, 1, 1]
        sound = ((indices >= limits[0]) & (indices <= limits[1])).all(axis=1)
        _, class_ids, places = indices[sound].T
        return Rows(boxes[places], scores[class_ids, places], class_ids)
