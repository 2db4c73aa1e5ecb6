"""Draws the results of a model into an image, and encodes it as a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.drawing.maps import cut_out, draw_class_map, draw_depth, draw_foreground
from fovea_engines.drawing.objects import draw_objects
from fovea_engines.drawing.tags import FONT, Tag, draw_tag, letter
from fovea_engines.results.colours import colour
from fovea_engines.results.detections import Detections
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.new_image import MediaType, NewImage
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidOption

_QUALITY = 92
_FORMS: Mapping[MediaType, tuple[str, Sequence[int], int]] = {
    "image/jpeg": (".jpg", [cv2.IMWRITE_JPEG_QUALITY, _QUALITY], 65_535),
    "image/png": (".png", [], 2**31 - 1),
    "image/webp": (".webp", [cv2.IMWRITE_WEBP_QUALITY, _QUALITY], 16_383),
}
"""Suffix of a file, settings of OpenCV, and the longest side that the format holds, pixels."""

# Of a caption, pixels; its letters by OpenCV's scale.
_STRIP, _GAP, _LETTERS = 40, 16, 0.7
# Letters of a list are this much of the image's shorter side, but legible.
_SCALE, _SMALLEST = 0.0011, 0.35
# More lines than these would hide the image.
_LINES = 10


@singledispatch
def draw(
    found: TaskResult,
    pixels: NDArray[np.uint8],
    words: Vocabulary,
) -> NDArray[np.uint8]:
    """Return a copy of an image, uint8 RGB [h, w, 3], with the results of a model drawn on it.

    It is in pixels of this image. A picture that a network made of it is returned itself. A result
    without a drawing of its own is listed in a corner.
    Class ids beyond the labels are shown as numbers. A class has one colour in all images; lines
    and letters scale with the image.
    """
    return draw_lines(found.lines(words.labels), pixels)


draw.register(Detections, draw_objects)
draw.register(ClassMap, draw_class_map)
draw.register(SoftMask, draw_foreground)
draw.register(DepthMap, draw_depth)


@draw.register
def _(
    found: NewImage,
    pixels: NDArray[np.uint8],
    words: Vocabulary,
) -> NDArray[np.uint8]:
    return found.rgb


def draw_lines(lines: Iterable[tuple[str, int]], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of an image, uint8 RGB [h, w, 3], with the first ten lines, as many as fit.

    Each has the number of its colour.
    """
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    scale = max(_SMALLEST, min(height, width) * _SCALE)
    top = 0
    for text, number in list(lines)[:_LINES]:
        line = letter(text, scale)
        if top + line.height > height:
            break
        shown = line._replace(width=min(line.width, width))
        draw_tag(canvas, Tag(shown, 0, top), colour(number))
        top += line.height
    return canvas


def annotated(
    found: TaskResult,
    pixels: NDArray[np.uint8],
    words: Vocabulary,
    media_type: MediaType,
) -> bytes:
    """Draw as `draw` does, and encode; of a `SoftMask`, PNG and WebP are the foreground alone."""
    if isinstance(found, SoftMask) and media_type != "image/jpeg":
        return encode(cut_out(found, pixels), media_type)
    return encode(draw(found, pixels, words), media_type)


def captioned(image: NDArray[np.uint8], text: str) -> NDArray[np.uint8]:
    """Put a caption above an image, and widen the image on the right where the text needs it."""
    height, width = image.shape[:2]
    (text_width, text_height), _ = cv2.getTextSize(text, FONT, _LETTERS, 1)
    pane = np.zeros((_STRIP + height, max(width, text_width + _GAP) + _GAP, 3), np.uint8)
    pane[_STRIP:, :width] = image
    origin = _GAP // 2, (_STRIP + text_height) // 2
    cv2.putText(pane, text, origin, FONT, _LETTERS, (255, 255, 255), 1, cv2.LINE_AA)
    return pane


def encode(pixels: NDArray[np.uint8], media_type: MediaType) -> bytes:
    """Encode an image, uint8 RGB [h, w, 3], as a JPEG or WebP (quality 92) or a PNG file.

    A file may also have alpha, [h, w, 4], but for JPEG. InvalidOption: the format does not hold
    sides as long.
    """
    suffix, settings, longest = _FORMS[media_type]
    if max(pixels.shape[:2]) > longest:
        raise InvalidOption(
            f"the picture is {pixels.shape[1]}x{pixels.shape[0]}, and {media_type} holds sides of "
            f"{longest} pixels at most: accept image/png"
        )
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(suffix, bgr, settings)
    return bytes(data)
