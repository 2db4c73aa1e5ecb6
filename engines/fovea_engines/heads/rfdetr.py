"""Decodes RF-DETR: boxes "dets" [n, queries, 4], and logits "labels" [n, queries, columns].

    rfdetr                     all columns are classes; COCO checkpoints have COCO's category ids
    rfdetr-background-last     fine-tuned models, whose last column is the background
    rfdetr-background-first    old checkpoints of keypoints, whose first column is the background
    rfdetr-seg...              with "masks" [n, queries, h, w]
    rfdetr-keypoints...        with "keypoints" [n, queries, classes x 17, 8]

A keypoint has eight numbers: x y as fractions of the input, a logit for "can be found", a logit for
"is visible", and four numbers for the uncertainty of its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import IMAGENET, Head, keypoints
from fovea_engines.heads.queries import COCO_IDS, SeparateQueries
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import PERSON
from fovea_engines.session import Array

_FAMILY = "rfdetr"
_NUMBERS = 8  # number of values per keypoint


class RfDetr(SeparateQueries):
    """Decodes boxes, and for some families masks.

    Attributes:
        usual: True if models with class names usually have the background in the same column as
            this family, False if they do not; None if all columns are classes.
    """

    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "linear-float",
        **IMAGENET,
    }
    names = (("labels", "dets"),)
    usual: ClassVar[bool | None] = None

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check the outputs with `Queries.fit`.

        Without class names, the user must state which column is the background.
        """
        fit = super().fit(signature)
        if fit != OTHERS and signature.family not in ("", _FAMILY):
            return f"the metadata names the family {signature.family}"
        if isinstance(fit, str) or cls.usual is None:
            return fit
        named = signature.num_labels is not None
        unlikely = not cls.usual if named else fit.num_classes == COCO_IDS - 1
        return replace(fit, strength=Strength.RARE) if unlikely else fit


class RfDetrKeypoints(RfDetr):
    """Decodes boxes and the keypoints of each class.

    Some classes may have no keypoints. Objects of these classes get keypoints at 0, 0 with the
    score 0. RF-DETR's own program multiplies the score of a box by a measure of the certainty of
    its keypoints. This measure is not a probability, so this head does not use it.
    """

    task = "pose"
    more = ("keypoints",)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for keypoints of persons."""
        fit = super().fit(signature)
        if isinstance(fit, str):
            return fit
        shape = next(one.shape for one in signature.outputs if one.name == fit.outputs[2])
        if len(shape) != 4 or shape[3] != _NUMBERS:
            return OTHERS
        if shape[2] < 1 or shape[2] % len(PERSON.names):
            return f"{shape[2]} keypoints do not fit the 17 keypoints of a person for each class"
        why = f"{fit.why}; {len(PERSON.names)} keypoints for each object"
        return replace(fit, why=why, skeleton=PERSON)

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        found, queries = self.objects(outputs, row, options)
        points = outputs[self.outputs[2]][row][queries].astype(np.float32)
        by_class = points.reshape(len(points), -1, len(PERSON.names), _NUMBERS)
        return replace(found, keypoints=self._select_class(by_class, found.class_ids + self.first))

    def _select_class(
        self, points: NDArray[np.float32], columns: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return keypoints [n, 17, 3] of each object's class, from [n, classes, 17, 8]."""
        assert self.size is not None, "it is sized"
        found = np.zeros((*points.shape[::2], 3), np.float32)
        own = np.flatnonzero(columns < points.shape[1])
        chosen = points[own, columns[own]]
        found[own, :, :2] = chosen[..., :2] * self.size[::-1]
        found[own, :, 2] = np.reciprocal(1 + np.exp(-chosen[..., 2]))
        return keypoints(found)


_BACKGROUND_LAST: Mapping[str, Any] = {"after": 1, "usual": True}
_BACKGROUND_FIRST: Mapping[str, Any] = {"first": 1, "usual": False}
_MASKS: Mapping[str, Any] = {"task": "segment", "more": ("masks",)}

HEADS: tuple[type[Head], ...] = (
    RfDetr.as_family("rfdetr"),
    RfDetr.as_family("rfdetr-background-last", **_BACKGROUND_LAST),
    RfDetr.as_family("rfdetr-background-first", **_BACKGROUND_FIRST),
    RfDetr.as_family("rfdetr-seg", **_MASKS),
    RfDetr.as_family("rfdetr-seg-background-last", **_MASKS, **_BACKGROUND_LAST),
    RfDetrKeypoints.as_family("rfdetr-keypoints"),
    RfDetrKeypoints.as_family("rfdetr-keypoints-background-last", **_BACKGROUND_LAST),
    RfDetrKeypoints.as_family("rfdetr-keypoints-background-first", **_BACKGROUND_FIRST),
)
