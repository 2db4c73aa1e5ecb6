"""Decodes detectors as LibreYOLO exports them: corners and probabilities, named by the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fovea_engines.detect.heads.base import IMAGENET, MMDETECTION, Layout
from fovea_engines.detect.heads.dense import Dense
from fovea_engines.detect.heads.signature import Fit, Signature, Strength


@dataclass(frozen=True, slots=True)
class LibreYolo9(Dense):
    """Decodes YOLOv9: [batch, 4 + classes, cells]; rows x1 y1 x2 y2 in pixels, probabilities."""

    family: ClassVar[str] = "libreyolo-yolo9"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left", "unscale": "ratio"}
    layout: ClassVar[Layout] = Layout(axis=1, corners=True)
    rare: ClassVar[bool] = True
    named: ClassVar[str] = "yolo9"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the layout; the metadata, where it is there, names the family."""
        fit = super(LibreYolo9, cls).fit(signature)
        if isinstance(fit, str) or not signature.family:
            return fit
        if signature.family != cls.named:
            return f"the metadata says {signature.family}"
        why = f"{fit.why}; the metadata says {signature.family}"
        return replace(fit, strength=Strength.METADATA, why=why)


@dataclass(frozen=True, slots=True)
class RtmDet(LibreYolo9):
    """Decodes RTMDet: [batch, cells, 4 + classes]."""

    family: ClassVar[str] = "rtmdet"
    preprocess: ClassVar[Mapping[str, Any]] = {
        **LibreYolo9.preprocess,
        "resample": "antialias",
        **MMDETECTION,
    }
    layout: ClassVar[Layout] = Layout(axis=2, corners=True)
    named: ClassVar[str] = "rtmdet"


@dataclass(frozen=True, slots=True)
class PicoDet(LibreYolo9):
    """Decodes PicoDet: [batch, cells, 4 + classes]."""

    family: ClassVar[str] = "picodet"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        **IMAGENET,
    }
    layout: ClassVar[Layout] = Layout(axis=2, corners=True)
    named: ClassVar[str] = "picodet"
