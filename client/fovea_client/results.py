"""Results as typed values, except detections, which are in `answers.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import Mask
from fovea_client.png import read_grey, read_levels


class Value:
    """A result of the whole image that can be written as lines of text."""

    __slots__ = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the result as text for people."""
        raise NotImplementedError

    @property
    def colour_number(self) -> int:
        """Return the class id that determines the colour of the lines in a drawing."""
        return 0


@dataclass(frozen=True, slots=True)
class ClassArea:
    """One class of a semantic segmentation.

    Attributes:
        class_id: number of the class, from 0 up.
        class_name: name of the class, or its number as text.
        pixels: number of pixels of the class.
        share: fraction of the image's pixels that have this class, 0 to 1.
        mask: run lengths or polygons, as requested; None if neither was requested.
    """

    class_id: int
    class_name: str
    pixels: int
    share: float
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class ScoredClass:
    """A class of the whole image. The scores of all classes of the model add up to 1.

    Attributes:
        class_id: number of the class, from 0 up.
        class_name: name of the class, or its number as text.
        score: confidence, 0 to 1.
    """

    class_id: int
    class_name: str
    score: float


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a recognised text, with a score from 0 to 1."""

    character: str
    score: float


@dataclass(frozen=True, slots=True)
class Semantic:
    """The classes of an image's pixels.

    Attributes:
        classes: classes in the image, largest area first.
        png: indexed PNG file whose index is the class id; None unless the request has mask="png".
    """

    classes: tuple[ClassArea, ...]
    png: bytes | None = None

    @property
    def class_ids(self) -> NDArray[Any]:
        """Return the class id of each pixel, uint8 [height, width]; the request needs mask="png".

        If the request selects classes with `classes`, the pixels of all other classes have the
        value 255. If the model has class ids of 255 or more, the array is uint16 and the value is
        65535.

        Raises:
            ValueError: there is no PNG file.

        Example:
            person = client.predict("segformer", "bus.jpg", mask="png").image.semantic.class_ids ==
            12
        """
        return read_grey(_require_png(self.png, "map", 'request mask="png"'))


@dataclass(frozen=True, slots=True)
class Saliency(Value):
    """The foreground of an image.

    Attributes:
        share: fraction of the image that is foreground, 0 to 1.
        png: 8-bit grey PNG file, 255 in the foreground; None with mask="none".
    """

    share: float
    png: bytes | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the share of the foreground in percent."""
        return (f"{self.share:.1%} of the image is foreground",)

    @property
    def alpha(self) -> NDArray[Any]:
        """Return the mask, uint8 [height, width], 255 in the foreground.

        Raises:
            ValueError: the request had mask="none".
        """
        return read_grey(_require_png(self.png, "map", 'remove mask="none" from the request'))


@dataclass(frozen=True, slots=True)
class Depth(Value):
    """The depth map of an image. A depth is ``level * scale + offset``.

    Attributes:
        min: smallest depth.
        max: largest depth.
        unit: "m" for metres; None if the model has its own scale. Values on such a scale are
            usually larger for pixels nearer to the camera.
        png: 16-bit grey PNG file of levels; None with mask="none".
        scale: difference in depth between two consecutive levels of the PNG file.
        offset: depth of level 0 of the PNG file.
    """

    min: float
    max: float
    unit: str | None
    png: bytes | None = None
    scale: float | None = None
    offset: float | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the range of the depths."""
        unit = "(the model's own scale)" if self.unit is None else self.unit
        return (f"depth {self.min:.3g} to {self.max:.3g} {unit}",)

    @property
    def values(self) -> NDArray[np.float32]:
        """Return the depths, float32 [height, width], in `unit`.

        Raises:
            ValueError: the request had mask="none".
        """
        levels = read_grey(_require_png(self.png, "map", 'remove mask="none" from the request'))
        return (levels * (self.scale or 1.0) + (self.offset or 0.0)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Reading(Value):
    """The text in an image that shows one line of text.

    Attributes:
        text: the recognised text.
        score: mean score of the characters, 0 to 1; 0 if there are no characters.
        characters: characters from left to right.
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
    """An image that an image-to-image model generated, e.g. larger or without noise.

    Attributes:
        width: width of the generated image in pixels.
        height: height of the generated image in pixels.
        png: 8-bit PNG file, RGB or grey; None with mask="none".
    """

    width: int
    height: int
    png: bytes | None = None

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """Return the pixels, uint8, [height, width, 3] RGB or [height, width] grey.

        Raises:
            ValueError: the request had mask="none".
        """
        levels = read_levels(
            _require_png(self.png, "picture", 'remove mask="none" from the request')
        )
        return levels.astype(np.uint8, copy=False)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return a line of text with the size of the generated image."""
        return (f"an image of {self.width} x {self.height} pixels",)


@dataclass(frozen=True, slots=True)
class Embedding(Value):
    """The embedding of an image or a text.

    Attributes:
        norm: length (L2 norm) of the embedding that the model computed, before normalisation.
        normalised: True if the embedding was divided by its length (option `normalize`).
        data: values of the embedding as little-endian float32; None if the request has
            vector="list". JSON contains them as base64.
        numbers: values of the embedding if the request has vector="list"; otherwise empty.
    """

    norm: float
    normalised: bool
    data: bytes | None = None
    numbers: tuple[float, ...] = ()

    @property
    def vector(self) -> NDArray[np.float32]:
        """Return the embedding, float32 [n].

        Example:
            cosine = one.vector @ other.vector  # if both are normalised
        """
        if self.data is None:
            return np.array(self.numbers, np.float32)
        return np.frombuffer(self.data, "<f4").astype(np.float32)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the number of dimensions and the norm."""
        return (f"a vector of {len(self.vector)}, norm {self.norm:.3g}",)


_LIKELY = 0.5


@dataclass(frozen=True, slots=True)
class Attribute(Value):
    """The result of one classifier, for a model with several classifiers.

    Attributes:
        name: name of the classifier.
        exclusive: True if exactly one class applies, so all scores add up to 1; False if any number
            of classes may apply.
        classes: classes, best first. The class ids are numbered across all classifiers of the
            model.
    """

    name: str
    exclusive: bool
    classes: tuple[ScoredClass, ...]

    @property
    def likely(self) -> tuple[ScoredClass, ...]:
        """Return the classes that apply.

        Returns:
            The best class if `exclusive`, otherwise all classes with a score of at least 0.5.
        """
        if self.exclusive:
            return self.classes[:1]
        return tuple(each for each in self.classes if each.score >= _LIKELY)

    @property
    def colour_number(self) -> int:
        """Return the id of the first class in `likely`, or 0."""
        return self.likely[0].class_id if self.likely else 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the name of the classifier and its likely classes."""
        named = ", ".join(f"{each.class_name} {each.score:.2f}" for each in self.likely)
        return (f"{self.name}: {named or 'none'}",)


@dataclass(frozen=True, slots=True)
class Match:
    """An image of a search index.

    Attributes:
        name: name of the image in the index.
        score: cosine similarity to the query, -1 to 1.
        thumbnail: small JPEG file; None unless it was requested and the index has it.
    """

    name: str
    score: float
    thumbnail: bytes | None = None


def _require_png(png: bytes | None, what: str, advice: str) -> bytes:
    if png is None:
        raise ValueError(f"the response has no {what}: {advice}")
    return png
