"""Decodes RF-DETR with masks, or with keypoints, beside its boxes, and D-FINE with masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature
from fovea_engines.detect.masks import whole_masks
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.skeleton import PERSON
from fovea_engines.session import Array
from fovea_heads.detr import RawRtDetr
from fovea_heads.keypoints import keypoints
from fovea_heads.queries import Queries
from fovea_heads.rfdetr import (
    RfDetr,
    RfDetrBackgroundFirst,
    RfDetrBackgroundLast,
)

_NUMBERS = 8
"""Of a keypoint: x y as fractions of the input, logits of being findable and of being visible, and
of where it may be."""


@dataclass(frozen=True, slots=True)
class _Masks(Queries):
    """Decodes logits of a mask for each query, [batch, queries, h, w], over the whole input."""

    task: ClassVar[str] = "segment"
    more: ClassVar[tuple[str, ...]] = ("masks",)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        found, queries = self.objects(outputs, row, options)
        if options.mask == "none":
            return found
        assert self.size is not None, "it is sized"
        logits = outputs[self.outputs[2]][row][queries]
        return replace(found, masks=whole_masks(logits, self.size))


@dataclass(frozen=True, slots=True)
class RfDetrSegment(_Masks, RfDetr):
    """Decodes all columns as classes."""

    family: ClassVar[str] = "rfdetr-seg"


@dataclass(frozen=True, slots=True)
class RfDetrSegmentBackgroundLast(_Masks, RfDetrBackgroundLast):
    """Decodes a fine-tuned model, whose last column is the background."""

    family: ClassVar[str] = "rfdetr-seg-background-last"


@dataclass(frozen=True, slots=True)
class RawRtDetrSegment(_Masks, RawRtDetr):
    """Decodes D-FINE with masks and its like, as LibreYOLO exports them."""

    family: ClassVar[str] = "rtdetr-raw-seg"
    more: ClassVar[tuple[str, ...]] = ("pred_masks",)


@dataclass(frozen=True, slots=True)
class _Keypoints(Queries):
    """Decodes the keypoints of each class, [batch, queries, classes x 17, 8].

    There may be fewer such classes than classes of boxes; the others have no keypoints, which are
    0, 0 with a score of 0. RF-DETR's own program also multiplies the score of a box by how surely
    it places the keypoints, which is no probability, and is left out here.
    """

    task: ClassVar[str] = "pose"
    more: ClassVar[tuple[str, ...]] = ("keypoints",)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for keypoints of persons."""
        # The class's own `super` is gone, as dataclasses with slots are made anew.
        fit = super(_Keypoints, cls).fit(signature)
        if isinstance(fit, str):
            return fit
        shape = next(one.shape for one in signature.outputs if one.name == fit.outputs[2])
        if len(shape) != 4 or shape[3] != _NUMBERS:
            return OTHERS
        if shape[2] < 1 or shape[2] % len(PERSON.names):
            return f"{shape[2]} keypoints are not a person's 17 of each class"
        why = f"{fit.why}; {len(PERSON.names)} keypoints of each"
        return replace(fit, why=why, skeleton=PERSON)

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        found, queries = self.objects(outputs, row, options)
        points = outputs[self.outputs[2]][row][queries].astype(np.float32)
        by_class = points.reshape(len(points), -1, len(PERSON.names), _NUMBERS)
        return replace(found, keypoints=self._of_class(by_class, found.class_ids + self.first))

    def _of_class(
        self, points: NDArray[np.float32], columns: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return keypoints [n, 17, 3] of the classes' own, [n, classes, 17, 8]."""
        assert self.size is not None, "it is sized"
        found = np.zeros((*points.shape[::2], 3), np.float32)
        own = np.flatnonzero(columns < points.shape[1])
        chosen = points[own, columns[own]]
        found[own, :, :2] = chosen[..., :2] * self.size[::-1]
        found[own, :, 2] = np.reciprocal(1 + np.exp(-chosen[..., 2]))
        return keypoints(found)


@dataclass(frozen=True, slots=True)
class RfDetrKeypoints(_Keypoints, RfDetr):
    """Decodes all columns as classes."""

    family: ClassVar[str] = "rfdetr-keypoints"


@dataclass(frozen=True, slots=True)
class RfDetrKeypointsBackgroundLast(_Keypoints, RfDetrBackgroundLast):
    """Decodes a fine-tuned model, whose last column is the background."""

    family: ClassVar[str] = "rfdetr-keypoints-background-last"


@dataclass(frozen=True, slots=True)
class RfDetrKeypointsBackgroundFirst(_Keypoints, RfDetrBackgroundFirst):
    """Decodes an old checkpoint, whose first column is the background."""

    family: ClassVar[str] = "rfdetr-keypoints-background-first"
