"""Decodes the output images of models that enlarge, sharpen, denoise or colour images.

    image                   input 0 to 1, output 0 to 1
    super-resolution        Open Model Zoo: input BGR 0 to 255, output 0 to 1
    super-resolution-grey   Open Model Zoo: input luma 0 to 255, output luma 0 to 1
    image-255               neural style transfer: input 0 to 255, output 0 to 255
    image-signed            GANs that end with a tanh: input -1 to 1, output -1 to 1

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

_LARGEST = 8  # largest factor between the side of the output and the side of the input
# Range of valid levels if black is 0 and white is 1. The range is wider than 0 to 1, because models
# overshoot at edges.
_BELOW, _ABOVE = -2.0, 3.0
# Largest mean level of an image that counts as black. The mean of a photograph is .2 to .7.
_DARK = 0.02


class Pictures(Head):
    """Decodes images [batch, 3, h, w] or [batch, 1, h, w].

    The output has the size of the input, or is larger by a whole factor.

    Attributes:
        low, high: values of black and of white.
        strength: strength of the fit if the output is larger than the input. If the output has the
            size of the input, a user must name the family.
        channels: numbers of channels that an output may have.
        enlarged: True if the model may take the enlarged image as a second input.
        dark: True if the family is excluded when a model returns a black image for a photograph.
        luma: True if the output is only the luma (brightness). Its colours are taken from the input
            image.
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
        """Check for one output image. The model must have no other inputs than images."""
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
        if not 1 <= factor <= _LARGEST or (signature.other_inputs and not cls.enlarged):
            return OTHERS
        why = (
            f"an image of {counted(output.shape[1], 'channel')}, {factor} times as large as the "
            "input"
        )
        if signature.task is not None:
            return Fit((output.name,), None, f"{why}, and the task is image", cls._raise_strength())
        if factor > 1:
            return Fit((output.name,), None, why, cls.strength)
        # An output with one channel is usually a map and not a grey image.
        if output.shape[1] == 1 and not signature.forced:
            return OTHERS
        return Fit((output.name,), None, why, Strength.ON_REQUEST)

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
            f"its numbers range from {least:.3g} to {most:.3g}, instead of {self.low:g} (black) "
            f"to {self.high:g} (white)"
        )

    def _check_brightness(self, outputs: Mapping[str, Array]) -> str | None:
        mean = float(outputs[self.outputs[0]].mean(dtype=np.float64))
        return (
            (f"the output for a photograph is almost black: its mean is {mean:.2g}")
            if mean < _DARK
            else None
        )

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the name of the output if any of its numbers is NaN or infinite.

        Other heads drop such numbers, but an image needs all its pixels.
        """
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
        guessed="most such models use RGB images with values from 0 to 1, but some do not",
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
        strength=Strength.ON_REQUEST,
        high=255.0,
        preprocess={**_FITTED, "scale": 1.0},
        guessed="most such models use RGB images with values from 0 to 255, but some do not",
    ),
    Pictures.as_family(
        "image-signed",
        strength=Strength.ON_REQUEST,
        low=-1.0,
        preprocess={**_FITTED, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
        guessed="most such models use RGB images with values from -1 to 1, but some do not",
    ),
)
