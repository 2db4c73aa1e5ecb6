"""Defines the picture that a network makes of an image as a typed value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_client.png import read_levels
from fovea_client.value import Value


@dataclass(frozen=True, slots=True)
class NewPicture(Value):
    """A picture that a network has made of an image: larger, sharper, without noise, in colour.

    Attributes:
        width: of the picture, pixels.
        height: of the picture, pixels.
        png: PNG file of 8 bits, RGB or grey; None with mask="none".
    """

    width: int
    height: int
    png: bytes | None = None

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """Return the levels, uint8 [height, width, 3] RGB or [height, width] of a grey picture.

        Raises `ValueError` after mask="none".
        """
        if self.png is None:
            raise ValueError('the answer has no picture: leave mask="none" out')
        return read_levels(self.png).astype(np.uint8, copy=False)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return its size."""
        return (f"a picture of {self.width} x {self.height} pixels",)
