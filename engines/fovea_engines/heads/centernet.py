"""Decodes CenterNet: a heat map of centres for each class, and maps of sizes and offsets.

    centernet          probabilities [n, classes, h, w], sizes and offsets in cells [n, 2, h, w]
    centernet-logits   logits instead of probabilities, as in the original model

The stride of the maps is 4 pixels. A cell is the centre of a box if its probability is the largest
in its 3 x 3 neighbourhood. Therefore there are no duplicates to suppress ("Objects as Points",
arXiv 1904.07850).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.heads.base import Detector, Head, corners
from fovea_engines.heads.dense import best_class
from fovea_engines.heads.evidence import far_off, no_logits, no_probabilities
from fovea_engines.heads.signature import OTHERS, Fit, Signature
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.text import counted

_STRIDE = 4
_NEAR = np.arange(-1, 2)


class CenterNet(Detector):
    """Decodes a heat map, sizes and offsets.

    Attributes:
        logits: True if the model does not apply the sigmoid to its heat map.
    """

    preprocess: ClassVar[Mapping[str, Any]] = {
        "pad": 0,
        "channels": "BGR",
        "mean": (0.408, 0.447, 0.47),
        "std": (0.289, 0.274, 0.278),
    }
    guessed = "MMDetection's CenterNet uses RGB and a different mean and std"
    variants = ("mean-std",)
    logits: ClassVar[bool]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three maps at stride 4: heat, sizes, offsets, in this order or by name."""
        if len(signature.outputs) != 3 or any(len(t.shape) != 4 for t in signature.outputs):
            return OTHERS
        heat, size, offset = signature.outputs
        if "reg" in size.name or "off" in size.name:
            size, offset = offset, size
        places = {tensor.shape[2:] for tensor in signature.outputs}
        if len(places) != 1 or not size.shape[1] == offset.shape[1] == 2:
            return OTHERS
        if isinstance(evidence := signature.at_stride(places.pop(), _STRIDE), str):
            return evidence
        if isinstance(classes := signature.count_classes(heat.shape[1]), str):
            return classes
        strength, why = evidence
        names = (heat.name, size.name, offset.name)
        return Fit(names, classes, f"{why}; {counted(classes, 'class')}", strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the heat map is outside its valid range, or offsets are larger
        than a cell.
        """
        heat, _, offset = (outputs[name][0] for name in self.outputs)
        cells = heat.reshape(len(heat), -1).T
        if (reason := no_logits(cells) if self.logits else no_probabilities(cells)) is not None:
            return f"heat map: {reason}"
        reason = far_off(offset.reshape(2, -1).T)
        return reason and f"offsets: {reason}"

    @np.errstate(divide="ignore", over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        heat, size, offset = (outputs[name][row] for name in self.outputs)
        conf = np.float64(options.conf)
        least = np.log(conf / (1 - conf)) if self.logits else conf
        y, x = np.nonzero((heat.max(axis=0) if self.logits else best_class(heat)) >= least)
        class_ids = heat[:, y, x].argmax(axis=0)
        values = heat[class_ids, y, x]
        rows = np.clip(y[:, None] + _NEAR, 0, heat.shape[1] - 1)[:, :, None]
        columns = np.clip(x[:, None] + _NEAR, 0, heat.shape[2] - 1)[:, None]
        peak = values >= heat[class_ids[:, None, None], rows, columns].max(axis=(1, 2))
        y, x, class_ids = y[peak], x[peak], class_ids[peak]
        cells = np.stack([x, y]).astype(np.float32) + offset[:, y, x]
        boxes = corners(np.concatenate([cells, size[:, y, x]]).T * np.float32(_STRIDE))
        scores = values[peak].astype(np.float32)
        if self.logits:
            scores = 1 / (1 + np.exp(-scores))
        return detections(boxes, scores, class_ids, options, suppress=False)

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the maps of the first image, [columns, cells]."""
        maps = [outputs[name][0] for name in self.outputs]
        table: Array = np.concatenate([each.reshape(len(each), -1) for each in maps])
        return table


HEADS: tuple[type[Head], ...] = (
    CenterNet.as_family("centernet", logits=False),
    CenterNet.as_family("centernet-logits", logits=True),
)
