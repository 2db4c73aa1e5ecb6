"""Defines maps of an image as typed values: classes, foreground and depths."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import Mask, read_file, read_mask
from fovea_client.png import read_grey


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
class Saliency:
    """The foreground of an image.

    Attributes:
        share: of the image that is foreground, 0 to 1.
        png: grey PNG file of 8 bits, 255 in the foreground; None with mask="none".
    """

    share: float
    png: bytes | None = None

    @property
    def alpha(self) -> NDArray[Any]:
        """Return the mask, uint8 [height, width]; raises `ValueError` after mask="none"."""
        return read_grey(_there(self.png, 'leave mask="none" out'))


@dataclass(frozen=True, slots=True)
class Depth:
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
    def values(self) -> NDArray[np.float32]:
        """Return the depths, float32 [height, width]; raises `ValueError` after mask="none"."""
        levels = read_grey(_there(self.png, 'leave mask="none" out'))
        return (levels * (self.scale or 1.0) + (self.offset or 0.0)).astype(np.float32)


Map = TypeVar("Map", Saliency, Depth)


def read_semantic(value: dict[str, Any] | None) -> Semantic | None:
    """Read the classes of an image; None where the answer has none."""
    if value is None:
        return None
    classes = tuple(
        ClassArea(
            class_id=int(each["class_id"]),
            class_name=str(each["class_name"]),
            pixels=int(each["pixels"]),
            share=float(each["share"]),
            mask=read_mask(each.get("mask")),
        )
        for each in value["classes"]
    )
    return Semantic(classes, read_file(value.get("png")))


def read_map(kind: type[Map], value: dict[str, Any] | None) -> Map | None:
    """Read a map, without the fields that later servers add; None where the answer has none."""
    if value is None:
        return None
    given = {each.name: value[each.name] for each in fields(kind) if each.name in value}
    return kind(**given | {"png": read_file(value.get("png"))})


def _there(png: bytes | None, advice: str) -> bytes:
    if png is None:
        raise ValueError(f"the answer has no map: {advice}")
    return png
