"""Decodes saliency: how far each pixel belongs to the foreground."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.heads.base import IMAGENET, Head
from fovea_engines.detect.heads.evidence import no_probability
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.maps import SoftMask
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array

# U^2-Net has a map for each of six levels of its decoder, and one of all of them.
_LEVELS = 7


class U2Net(Head):
    """Decodes probabilities [batch, 1, h, w], the first of one or of several maps.

    They are stretched so that the least is 0 and the greatest is 1, as rembg does.
    """

    family = "u2net"
    task = "saliency"
    nameless = True
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "resample": "lanczos", **IMAGENET}

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for maps of one channel."""
        if any(len(t.shape) != 4 or t.shape[1] not in (1, -1) for t in signature.outputs):
            return OTHERS
        return one_channel(signature, Strength.SHAPE if len(signature.outputs) == _LEVELS else None)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no probabilities."""
        return no_probability(outputs[self.outputs[0]].ravel(), self.outputs[0])

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> SoftMask:
        """Return one image's foreground."""
        values = np.nan_to_num(outputs[self.outputs[0]][row, 0].astype(np.float32), copy=False)
        low, high = values.min(), values.max()
        return SoftMask((values - low) / (high - low) if high > low else np.zeros_like(values))


class IsNet(U2Net):
    """Decodes IS-Net (DIS), RMBG and others of their preprocessing."""

    family = "isnet"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "lanczos",
        "mean": (0.5, 0.5, 0.5),
    }

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for a map of one channel, and others of any number behind it."""
        return one_channel(signature)


def one_channel(signature: Signature, strength: Strength | None = None) -> Fit | str:
    """Return the fit of the first output; without a strength, anything can have such outputs."""
    if not signature.outputs:
        return OTHERS
    output = signature.outputs[0]
    if len(output.shape) != 4 or output.shape[1] != 1 or not output.dtype.startswith("float"):
        return OTHERS
    if isinstance(found := signature.at_stride(output.shape[2:], 1), str):
        return found
    usual, why = found
    if strength is not None:
        strength = min(strength, usual)
    elif signature.task is not None:
        strength = Strength.METADATA
    elif usual is Strength.POSSIBLE:
        return OTHERS
    else:
        strength = Strength.ASKED
    return Fit((output.name,), None, f"{why}, of one channel", strength)
