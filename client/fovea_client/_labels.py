"""Chooses colours, texts and positions of the labels on an image, for Pillow and SVG drawings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fovea_client._colours import Colour, colour, shades
from fovea_client.answers import Detection, ImageResult
from fovea_client.shapes import Box

BACKGROUND = ("background", "0")
"""Names of the background class. Drawings do not colour this class.

In most models without class names, the background is the first class, with the name "0".
"""

# Smallest score of a class, and smallest fraction of the image that an area covers, that the
# drawing lists. Smaller values would be displayed as 0.00 or 0.0%.
_MIN_SCORE, _MIN_SHARE = 0.005, 0.0005


class Label(NamedTuple):
    """A line of text on a coloured background; coordinates and sizes in pixels of the image."""

    text: str
    fill: Colour
    left: float
    top: float
    width: float
    height: float

    def is_clear_of(self, other: Label) -> bool:
        """Return whether this label does not overlap the other label."""
        return (
            abs(self.top - other.top) >= self.height
            or self.left >= other.left + other.width
            or self.left + self.width <= other.left
        )


def colours_of(found: Sequence[Detection]) -> list[Colour]:
    """Return the colours of objects.

    Objects of one class whose masks touch get different shades.
    """
    ids = [each.class_id for each in found]
    if any(each.mask for each in found):
        boxes = [(each.box.x1, each.box.y1, each.box.x2, each.box.y2) for each in found]
        return list(map(colour, ids, shades(ids, boxes)))
    return list(map(colour, ids))


def lines_of(result: ImageResult) -> Iterator[tuple[str, Colour]]:
    """Yield the lines of text that describe the whole image, each with its colour."""
    for value in result.values:
        for line in value.lines:
            yield _line(line), colour(value.colour_number)
    for each in result.classes:
        if each.score >= _MIN_SCORE:
            yield _line(f"{each.class_name} {each.score:.2f}"), colour(each.class_id)
    for area in result.semantic.classes if result.semantic else ():
        if area.share >= _MIN_SHARE and area.class_name.casefold() not in BACKGROUND:
            yield _line(f"{area.class_name} {area.share:.1%}"), colour(area.class_id)


def labels_of(
    found: Sequence[Detection],
    width_of: Callable[[str], float],
    height: float,
    size: tuple[int, int],
) -> Iterator[Label]:
    """Yield labels that lie inside an image of (width, height) and do not overlap.

    The label of the best object is placed first. If a label with name and score does not fit, the
    label has only the name. If the name does not fit either, the object gets no label.
    """
    taken: list[Label] = []
    for each, fill in zip(found, colours_of(found), strict=True):
        name = _name(each)
        choices = (
            Label(text, fill, left, top, wide, height)
            for text in (f"{name} {each.score:.2f}", name)
            for wide in [width_of(text)]
            for left, top in _spots(each.box, wide, height, size[0])
            if wide <= size[0] and 0 <= top <= size[1] - height
        )
        label = next((one for one in choices if all(map(one.is_clear_of, taken))), None)
        if label is not None:
            taken.append(label)
            yield label


def _name(found: Detection) -> str:
    track = "" if found.track_id is None else f" #{found.track_id}"
    return _line(", ".join([found.class_name + track, *found.notes]))


def _line(text: str) -> str:
    return " ".join(text.split())


def _spots(box: Box, wide: float, tall: float, width: int) -> Iterator[tuple[float, float]]:
    """Yield possible top left corners of a label at a box's edges, best first, as (x, y).

    With some corners, the label extends beyond the top or bottom of the image.
    """
    for top in (box.y1 - tall, max(box.y1, 0.0), box.y2, box.y2 - tall):
        for left in (box.x1, box.x2 - wide):
            yield max(0.0, min(left, width - wide)), top
