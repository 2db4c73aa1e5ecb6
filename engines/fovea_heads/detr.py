"""Decodes DETR, RT-DETR and their kin without post-processing in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import IMAGENET
from fovea_engines.detect.heads.signature import Fit, Signature, Strength
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_heads.queries import COCO_IDS, Queries, SeparateQueries
from fovea_heads.query_evidence import background_last, none_last

_NAMES = (("pred_logits", "pred_boxes"), ("logits", "pred_boxes"))
"""Of the models themselves and LibreYOLO, and of Hugging Face."""


@dataclass(frozen=True, slots=True)
class RawRtDetr(SeparateQueries):
    """Decodes RT-DETR, D-FINE, DEIM and others whose classes are scored by a sigmoid each."""

    family: ClassVar[str] = "rtdetr-raw"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "resample": "antialias"}
    guessed: ClassVar[str] = (
        "RT-DETR, D-FINE and DEIM take 0 to 1; Deformable, Conditional and LW-DETR and DEIMv2 from "
        "S up take ImageNet's mean and std"
    )
    variants: ClassVar[tuple[str, ...]] = ("mean-std",)
    names: ClassVar[tuple[tuple[str, str], ...]] = _NAMES

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check as `Queries.fit`; 92 columns are more likely COCO's ids and none."""
        fit = super(RawRtDetr, cls).fit(signature)
        if isinstance(fit, str):
            return fit
        if signature.family == Detr.family:
            return f"the metadata says {signature.family}"
        if signature.family:
            why = f"{fit.why}; the metadata says {signature.family}"
            return replace(fit, strength=Strength.METADATA, why=why)
        if fit.num_classes == COCO_IDS + 1 != signature.num_labels:
            return replace(fit, strength=Strength.SHAPE)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude logits of one softmax, whose last class is "none", too."""
        reason = super(RawRtDetr, self).contradiction(outputs)
        return reason or none_last(outputs[self.outputs[0]][0])


@dataclass(frozen=True, slots=True)
class Detr(Queries):
    """Decodes DETR and YOLOS: a softmax, of which the last class is "none"."""

    family: ClassVar[str] = "detr"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "antialias",
        **IMAGENET,
    }
    guessed: ClassVar[str] = "the image is stretched, though DETR was trained with its aspect kept"
    variants: ClassVar[tuple[str, ...]] = ("letterboxed",)
    names: ClassVar[tuple[tuple[str, str], ...]] = _NAMES
    after: ClassVar[int] = 1

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check as `Queries.fit`."""
        fit = super(Detr, cls).fit(signature)
        if isinstance(fit, Fit) and signature.family not in ("", cls.family):
            return f"the metadata says {signature.family}"
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude logits that are not of a softmax with "none" at the end, and other boxes."""
        logits = outputs[self.outputs[0]][0]
        return background_last(logits) or super(Detr, self).contradiction(outputs)

    def scores(
        self, logits: NDArray[np.float32], options: PredictOptions
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
        """Return the best class of each query."""
        classes = logits[:, :-1]
        class_ids = classes.argmax(axis=1)
        query = np.arange(len(logits))
        best = classes[query, class_ids]
        # 1 / sum exp(x - best) is the softmax of the best; an overflow is a score of 0.
        return query, class_ids, 1 / np.exp(logits - best[:, None]).sum(axis=1)
