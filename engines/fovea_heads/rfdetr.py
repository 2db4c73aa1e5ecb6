"""Decodes RF-DETR: boxes named "dets", and logits named "labels"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fovea_engines.detect.heads.base import IMAGENET
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_heads.queries import COCO_IDS, SeparateQueries


@dataclass(frozen=True, slots=True)
class RfDetr(SeparateQueries):
    """Decodes all columns as classes: those of the COCO checkpoints are COCO's category ids."""

    family: ClassVar[str] = "rfdetr"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "linear-float",
        **IMAGENET,
    }
    names: ClassVar[tuple[tuple[str, str], ...]] = (("labels", "dets"),)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check as `Queries.fit`, and that the metadata names no other family."""
        fit = super(RfDetr, cls).fit(signature)
        if fit == OTHERS or signature.family in ("", RfDetr.family):
            return fit
        return f"the metadata says {signature.family}"


@dataclass(frozen=True, slots=True)
class RfDetrBackgroundLast(RfDetr):
    """Decodes a fine-tuned model, whose last column is the background."""

    family: ClassVar[str] = "rfdetr-background-last"
    after: ClassVar[int] = 1
    usual: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check as `Queries.fit`; without class names only the user can tell."""
        fit = super(RfDetrBackgroundLast, cls).fit(signature)
        if isinstance(fit, str):
            return fit
        named = signature.num_labels is not None
        unlikely = not cls.usual if named else fit.num_classes == COCO_IDS - 1
        return replace(fit, strength=Strength.RARE) if unlikely else fit


@dataclass(frozen=True, slots=True)
class RfDetrBackgroundFirst(RfDetrBackgroundLast):
    """Decodes an old key-point checkpoint, whose first column is the background."""

    family: ClassVar[str] = "rfdetr-background-first"
    first: ClassVar[int] = 1
    after: ClassVar[int] = 0
    usual: ClassVar[bool] = False
