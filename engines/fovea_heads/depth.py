"""Decodes monocular depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.heads.base import IMAGENET, Head
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.maps import DepthMap
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array

_NAMES = ("predicted_depth", "depth")


class Depth(Head):
    """Decodes a map [batch, h, w] or [batch, 1, h, w] without a unit: Depth Anything, MiDaS, DPT.

    Attributes:
        metres: the values are metres.
        corners: outermost cells lie on outermost pixels, see `smooth`.
    """

    family = "depth"
    task = "depth"
    nameless = True
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", **IMAGENET}
    guessed = "Depth Anything and MiDaS's small model have ImageNet's mean and std; others differ"
    metres: ClassVar[bool] = False
    corners: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map of one channel."""
        if len(signature.outputs) != 1:
            return OTHERS
        [output] = signature.outputs
        if len(output.shape) not in (3, 4) or not output.dtype.startswith("float"):
            return OTHERS
        if len(output.shape) == 4 and output.shape[1] != 1:
            return OTHERS
        if isinstance(found := signature.at_stride(output.shape[-2:], 1), str):
            return found
        usual, why = found
        strength = cls._strength(signature)
        if strength is Strength.ASKED and usual is Strength.POSSIBLE:
            return OTHERS
        return Fit((output.name,), None, f"{why}, of one channel", strength)

    @classmethod
    def _strength(cls, signature: Signature) -> Strength:
        if signature.task is not None or signature.outputs[0].name in _NAMES:
            return Strength.NAMES
        return Strength.ASKED

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> DepthMap:
        """Return one image's depths; the least replaces values that are not finite."""
        found = outputs[self.outputs[0]][row]
        values = found.reshape(found.shape[-2:]).astype(np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            values[~finite] = values[finite].min() if finite.any() else 0
        return DepthMap(values, self.metres, self.corners)


class YoloDepth(Depth):
    """Decodes YOLO26's depth, in metres."""

    family = "yolo-depth"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch"}
    guessed = ""
    metres = True
    corners = True

    @classmethod
    def _strength(cls, signature: Signature) -> Strength:
        return Strength.METADATA if signature.family == "Depth" else Strength.ASKED

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no metres."""
        least = np.asarray(outputs[self.outputs[0]], np.float32).min(initial=0)
        return f"it is no depth in metres: one is {least:.3g}" if least < 0 else None
