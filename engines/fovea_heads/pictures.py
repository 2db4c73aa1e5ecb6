"""Decodes images that networks make of images: enlarged, sharper, without noise, in colour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.new_image import NewImage
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.plural import counted

_LARGEST = 8  # times as large as the input
# Networks overshoot at edges: by so much, where levels go from 0 to 1.
_BELOW, _ABOVE = -2.0, 3.0
# Of photographs, less is black: their mean is .2 to .7.
_DARK = 0.02


class Pictures(Head):
    """Decodes pictures [batch, 3, h, w] or [batch, 1, h, w], as large as the input or n times.

    Attributes:
        low, high: the numbers of black and of white.
        strength: of a picture larger than the input; of one as large, a user must say so.
    """

    family = "image"
    task = "image"
    nameless = True
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left", "max_scale": 1.0}
    guessed = "most such networks take RGB from 0 to 1; others differ"
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    strength: ClassVar[Strength] = Strength.SHAPE
    channels: ClassVar[tuple[int, ...]] = (1, 3)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one picture, of a network that takes nothing but the image."""
        if len(signature.outputs) != 1 or signature.size is None:
            return OTHERS
        [output] = signature.outputs
        if len(output.shape) != 4 or not output.dtype.startswith("float"):
            return OTHERS
        if output.shape[1] not in cls.channels or signature.num_labels is not None:
            return OTHERS
        factor = output.shape[2] // signature.size[0]
        if output.shape[2:] != tuple(side * factor for side in signature.size):
            return OTHERS
        if not 1 <= factor <= _LARGEST or not cls._takes(signature):
            return OTHERS
        why = f"a picture of {counted(output.shape[1], 'channel')}, {factor} times as large"
        if signature.task is not None:
            return Fit((output.name,), None, f"{why}, and the task is image", cls._told())
        if factor > 1:
            return Fit((output.name,), None, why, cls.strength)
        # Maps have one channel, too, and are more usual.
        if output.shape[1] == 1 and not signature.forced:
            return OTHERS
        return Fit((output.name,), None, why, Strength.ASKED)

    @classmethod
    def _takes(cls, signature: Signature) -> bool:
        return not signature.beside

    @classmethod
    def _told(cls) -> Strength:
        return Strength.METADATA if cls.strength is Strength.SHAPE else cls.strength

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no levels."""
        return self._beyond(outputs) or self._dark(outputs)

    def _beyond(self, outputs: Mapping[str, Array]) -> str | None:
        numbers = outputs[self.outputs[0]].astype(np.float32)
        span = self.high - self.low
        least, most = float(numbers.min(initial=0)), float(numbers.max(initial=0))
        if self.low + _BELOW * span <= least and most <= self.low + _ABOVE * span:
            return None
        return (
            f"its numbers go from {least:.3g} to {most:.3g}, and not from {self.low:g} (black) to "
            f"{self.high:g} (white)"
        )

    def _dark(self, outputs: Mapping[str, Array]) -> str | None:
        mean = float(outputs[self.outputs[0]].mean(dtype=np.float64))
        return f"a photograph becomes black: its mean is {mean:.2g}" if mean < _DARK else None

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the output if any number of it is NaN or infinite: none can be left out."""
        [name] = self.outputs
        return None if np.isfinite(outputs[name][row : row + 1]).all() else f"output {name}"

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> NewImage:
        """Return one picture, with the channels as the network has them."""
        planes = outputs[self.outputs[0]][row].astype(np.float32)
        levels = (planes - np.float32(self.low)) / np.float32(self.high - self.low)
        return NewImage(np.moveaxis(levels, 0, 2))


class SuperResolution(Pictures):
    """Decodes Open Model Zoo's: 0 to 255 in BGR, and 0 to 1 out; some take it enlarged, too."""

    family = "super-resolution"
    preprocess: ClassVar[Mapping[str, Any]] = {
        **Pictures.preprocess,
        "scale": 1.0,
        "channels": "BGR",
    }
    guessed = ""
    strength = Strength.RARE
    channels = (3,)

    @classmethod
    def _takes(cls, signature: Signature) -> bool:
        return True

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no levels; of 0 to 1, as others take them, all is black."""
        return self._beyond(outputs)


class GreySuperResolution(SuperResolution):
    """Decodes the luma of a picture, of a network that takes that of RGB."""

    family = "super-resolution-grey"
    preprocess: ClassVar[Mapping[str, Any]] = {**Pictures.preprocess, "scale": 1.0}
    channels = (1,)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> NewImage:
        """Return the luma, which gets the colours of its image where that is at hand."""
        found = super().decode(outputs, row, options)
        return replace(found, luma=True)


class Pictures255(Pictures):
    """Decodes levels of 0 to 255 of such an image: neural style."""

    family = "image-255"
    preprocess: ClassVar[Mapping[str, Any]] = {**Pictures.preprocess, "scale": 1.0}
    guessed = "most such networks take RGB from 0 to 255; others differ"
    high = 255.0
    strength = Strength.ASKED

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no levels; of 0 to 1, as others take them, all is black."""
        return self._beyond(outputs)


class SignedPictures(Pictures255):
    """Decodes levels of -1 to 1 of such an image: GANs, with a tanh at the end."""

    family = "image-signed"
    preprocess: ClassVar[Mapping[str, Any]] = {
        **Pictures.preprocess,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
    }
    guessed = "most such networks take RGB from -1 to 1; others differ"
    low = -1.0
    high = 1.0
