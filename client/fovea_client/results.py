"""Results as typed values, but for objects, which are in `answers.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import Mask
from fovea_client.png import read_grey, read_levels


class Value:
    """A result of a whole image that people read as `lines`."""

    __slots__ = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return what it is, for people."""
        raise NotImplementedError

    @property
    def colour_number(self) -> int:
        """Return the number of the colour of its lines, which is that of a class."""
        return 0


@dataclass(frozen=True, slots=True)
class ClassArea:
    """One class of an image.

    Attributes:
        pixels: number of pixels of the class.
        share: of all pixels of the image, 0 to 1.
        mask: run lengths or polygons, as requested; None if neither was requested.
    """

    class_id: int
    class_name: str
    pixels: int
    share: float
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class ScoredClass:
    """A class of the whole image; the scores of all classes add up to 1."""

    class_id: int
    class_name: str
    score: float


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a text; its score is 0 to 1."""

    character: str
    score: float


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
        return read_grey(_require_png(self.png, "map", 'ask for mask="png"'))


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
        return read_grey(_require_png(self.png, "map", 'leave mask="none" out'))


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
        levels = read_grey(_require_png(self.png, "map", 'leave mask="none" out'))
        return (levels * (self.scale or 1.0) + (self.offset or 0.0)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Reading(Value):
    """The text of an image, which is one line.

    Attributes:
        score: the mean of its characters, 0 to 1; 0 without one.
        characters: from left to right.
    """

    text: str
    score: float
    characters: tuple[Character, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the text and its score."""
        return (f"{self.text} {self.score:.2f}",)


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
        levels = read_levels(_require_png(self.png, "picture", 'leave mask="none" out'))
        return levels.astype(np.uint8, copy=False)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return its size."""
        return (f"a picture of {self.width} x {self.height} pixels",)


@dataclass(frozen=True, slots=True)
class Embedding(Value):
    """A vector of an image, to compare images by.

    Attributes:
        norm: the length that the network gave the vector.
        normalised: the vector was divided by its length, as the option normalize says.
        data: float32 numbers, little-endian, in JSON as base64; absent with vector=list.
        numbers: the same as a list, with vector=list alone.
    """

    norm: float
    normalised: bool
    data: bytes | None = None
    numbers: tuple[float, ...] = ()

    @property
    def vector(self) -> NDArray[np.float32]:
        """Return the vector, float32 [n]; the cosine of two of length 1 is their product, `@`."""
        if self.data is None:
            return np.array(self.numbers, np.float32)
        return np.frombuffer(self.data, "<f4").astype(np.float32)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the number of its numbers, and its length."""
        return (f"a vector of {len(self.vector)}, norm {self.norm:.3g}",)


_LIKELY = 0.5


@dataclass(frozen=True, slots=True)
class Attribute(Value):
    """The classes of an image by one of several classifiers.

    Attributes:
        name: of the classifier.
        exclusive: one of the classes holds, so that all scores add up to 1; else any number of
            them holds.
        classes: best first; ids count through all classifiers of the model.
    """

    name: str
    exclusive: bool
    classes: tuple[ScoredClass, ...]

    @property
    def likely(self) -> tuple[ScoredClass, ...]:
        """Return the best class, or those with a score from .5 on where several can be."""
        if self.exclusive:
            return self.classes[:1]
        return tuple(each for each in self.classes if each.score >= _LIKELY)

    @property
    def colour_number(self) -> int:
        """Return the first likely class."""
        return self.likely[0].class_id if self.likely else 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the name with its likely classes."""
        named = ", ".join(f"{each.class_name} {each.score:.2f}" for each in self.likely)
        return (f"{self.name}: {named or 'none'}",)


@dataclass(frozen=True, slots=True)
class Match:
    """An image of an index; the score is the cosine of both vectors, -1 to 1.

    Attributes:
        thumbnail: a small JPEG file; None unless it was requested and the index has it.
    """

    name: str
    score: float
    thumbnail: bytes | None = None


def _require_png(png: bytes | None, what: str, advice: str) -> bytes:
    if png is None:
        raise ValueError(f"the answer has no {what}: {advice}")
    return png
