"""Decodes images that models compute from images: enlarged, sharper, denoised, coloured.

    image                   levels of 0 to 1 of an image of 0 to 1
    super-resolution        Open Model Zoo: levels of 0 to 1 of BGR from 0 to 255
    super-resolution-grey   the same of a luma
    image-255               neural style: levels of 0 to 255 of an image of 0 to 255
    image-signed            GANs, with a tanh at the end: levels of -1 to 1 of an image of -1 to 1

All outputs are [n, 3, h, w] or [n, 1, h, w].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.heads.base import Head
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.text import counted

_LARGEST = 8  # largest factor between the sides of output and input
# Range of valid levels, if black is 0 and white is 1: models overshoot at edges.
_BELOW, _ABOVE = -2.0, 3.0
# Largest mean of an image that counts as black; photographs have .2 to .7.
_DARK = 0.02


class Pictures(Head):
    """Decodes images [batch, 3, h, w] or [batch, 1, h, w], as large as the input or n times.

    Attributes:
        low, high: values of black and of white.
        strength: strength of the fit if the output is larger than the input. If both are equally
            large, a user must name the family.
        channels: numbers of channels that an output may have.
        enlarged: True if the model may take the enlarged image as a second input.
        dark: True if a black output for a photograph contradicts the family.
        luma: True if the output has no colours, and gets the colours of its input.
    """

    task = "image"
    nameless = True
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    strength: ClassVar[Strength]
    channels: ClassVar[tuple[int, ...]] = (1, 3)
    enlarged: ClassVar[bool] = False
    dark: ClassVar[bool] = False
    luma: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output image of a model that takes nothing but the image."""
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
        if not 1 <= factor <= _LARGEST or (signature.beside and not cls.enlarged):
            return OTHERS
        why = f"a picture of {counted(output.shape[1], 'channel')}, {factor} times as large"
        if signature.task is not None:
            return Fit((output.name,), None, f"{why}, and the task is image", cls._raise_strength())
        if factor > 1:
            return Fit((output.name,), None, why, cls.strength)
        # Maps with one channel are more usual than images.
        if output.shape[1] == 1 and not signature.forced:
            return OTHERS
        return Fit((output.name,), None, why, Strength.ASKED)

    @classmethod
    def _raise_strength(cls) -> Strength:
        return Strength.METADATA if cls.strength is Strength.SHAPE else cls.strength

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return a reason against the family if numbers are not levels of an image."""
        return self._check_range(outputs) or (
            self._check_brightness(outputs) if self.dark else None
        )

    def _check_range(self, outputs: Mapping[str, Array]) -> str | None:
        numbers = outputs[self.outputs[0]].astype(np.float32)
        span = self.high - self.low
        least, most = float(numbers.min(initial=0)), float(numbers.max(initial=0))
        if self.low + _BELOW * span <= least and most <= self.low + _ABOVE * span:
            return None
        return (
            f"its numbers go from {least:.3g} to {most:.3g}, and not from {self.low:g} (black) to "
            f"{self.high:g} (white)"
        )

    def _check_brightness(self, outputs: Mapping[str, Array]) -> str | None:
        mean = float(outputs[self.outputs[0]].mean(dtype=np.float64))
        return (
            (f"a photograph becomes black: the output's mean is {mean:.2g}")
            if mean < _DARK
            else None
        )

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the output if any number is NaN or infinite, as no pixel can be left out."""
        [name] = self.outputs
        return None if np.isfinite(outputs[name][row : row + 1]).all() else f"output {name}"

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> NewImage:
        """Return the output image, with channels in the order of the model."""
        planes = outputs[self.outputs[0]][row].astype(np.float32)
        levels = (planes - np.float32(self.low)) / np.float32(self.high - self.low)
        return NewImage(np.moveaxis(levels, 0, 2), luma=self.luma)


_FITTED: Mapping[str, Any] = {"anchor": "top-left", "max_scale": 1.0}

HEADS: tuple[type[Head], ...] = (
    Pictures.as_family(
        "image",
        strength=Strength.SHAPE,
        dark=True,
        preprocess=_FITTED,
        guessed="most such networks take RGB from 0 to 1; others differ",
    ),
    Pictures.as_family(
        "super-resolution",
        strength=Strength.RARE,
        channels=(3,),
        enlarged=True,
        preprocess={**_FITTED, "scale": 1.0, "channels": "BGR"},
    ),
    Pictures.as_family(
        "super-resolution-grey",
        strength=Strength.RARE,
        channels=(1,),
        enlarged=True,
        luma=True,
        preprocess={**_FITTED, "scale": 1.0},
    ),
    Pictures.as_family(
        "image-255",
        strength=Strength.ASKED,
        high=255.0,
        preprocess={**_FITTED, "scale": 1.0},
        guessed="most such networks take RGB from 0 to 255; others differ",
    ),
    Pictures.as_family(
        "image-signed",
        strength=Strength.ASKED,
        low=-1.0,
        preprocess={**_FITTED, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
        guessed="most such networks take RGB from -1 to 1; others differ",
    ),
)
