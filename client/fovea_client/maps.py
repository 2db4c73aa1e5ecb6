"""Defines maps of an image as typed values: classes, foreground and depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import Mask
from fovea_client.png import read_grey
from fovea_client.value import Value


@dataclass(frozen=True, slots=True)
class ClassArea:
    """One class of an image.

    Attributes:
        pixels: number of pixels of the class.
        share: of all pixels of the image, 0 to 1.
        mask: run lengths or polygons, as the request asked for; None if it asked for neither.
    """

    class_id: int
    class_name: str
    pixels: int
    share: float
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class Semantic:
    """The classes of an image, the largest first.

    Attributes:
        png: indexed PNG file, its index is the class id; None unless the request has mask="png".
    """

    classes: tuple[ClassArea, ...]
    png: bytes | None = None

    @property
    def class_ids(self) -> NDArray[Any]:
        """Return the class of each pixel, uint8 [height, width], of a request with mask="png".

        255 is a class that the request leaves out. With classes of 255 and over it is uint16, and
        65535. Raises `ValueError` if there is no file.
        """
        return read_grey(_there(self.png, 'ask for mask="png"'))


@dataclass(frozen=True, slots=True)
class Saliency(Value):
    """The foreground of an image.

    Attributes:
        share: of the image that is foreground, 0 to 1.
        png: grey PNG file of 8 bits, 255 in the foreground; None with mask="none".
    """

    share: float
    png: bytes | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the share in percent."""
        return (f"{self.share:.1%} of the image is foreground",)

    @property
    def alpha(self) -> NDArray[Any]:
        """Return the mask, uint8 [height, width]; raises `ValueError` after mask="none"."""
        return read_grey(_there(self.png, 'leave mask="none" out'))


@dataclass(frozen=True, slots=True)
class Depth(Value):
    """The depths of an image.

    Attributes:
        min: the least depth.
        max: the greatest depth.
        unit: "m" for metres; None in the model's own scale, which mostly grows towards the camera.
        png: grey PNG file of 16 bits; None with mask="none".
        scale: a depth is a level of the file times this.
        offset: and plus this.
    """

    min: float
    max: float
    unit: str | None
    png: bytes | None = None
    scale: float | None = None
    offset: float | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the range."""
        unit = "(the model's own scale)" if self.unit is None else self.unit
        return (f"depth {self.min:.3g} to {self.max:.3g} {unit}",)

    @property
    def values(self) -> NDArray[np.float32]:
        """Return the depths, float32 [height, width]; raises `ValueError` after mask="none"."""
        levels = read_grey(_there(self.png, 'leave mask="none" out'))
        return (levels * (self.scale or 1.0) + (self.offset or 0.0)).astype(np.float32)


def _there(png: bytes | None, advice: str) -> bytes:
    if png is None:
        raise ValueError(f"the answer has no map: {advice}")
    return png
