"""Draws a result into its image with Pillow, in the colours of the server."""

from __future__ import annotations

import io
import math
from itertools import compress

import numpy as np

from fovea_client._colours import Colour, colour, ink
from fovea_client._labels import BACKGROUND, colours_of, labels_of, lines_of
from fovea_client._masks import Mask, Outlines
from fovea_client._skeleton import BONES, PERSON, SEEN
from fovea_client.answers import Detection, ImageResult
from fovea_client.images import Channels, ImageSource, image_to_send
from fovea_client.results import Depth, Semantic

try:
    from PIL import Image, ImageDraw, ImageFont, ImageOps
except ModuleNotFoundError as error:
    raise ImportError("Pillow is not installed: pip install pillow", name=error.name) from error

# Opacity of masks and of semantic areas, 0 to 255. The image under them must stay recognisable.
_MASK, _AREA = 115, 140
_LINES = 10  # largest number of text lines on an image; more lines would hide the image


def plot(result: ImageResult, image: ImageSource | None, channels: Channels) -> Image.Image:
    """Return a new RGB image with the results drawn in; see `ImageResult.plot`."""
    if result.picture is not None:
        return Image.fromarray(result.picture.pixels).convert("RGB")
    if result.tensors or result.embedding is not None:
        raise ValueError(
            "tensors and embeddings cannot be drawn: read them from `tensors` or `embedding`"
        )
    canvas = _upright(result, image, channels) if result.depth is None else _depths(result.depth)
    if result.saliency is not None:
        dimmed = canvas.point(lambda level: level / 4)
        canvas = Image.composite(canvas, dimmed, Image.fromarray(result.saliency.alpha))
    if result.semantic is not None:
        _tint_classes(canvas, result.semantic)
    _draw_objects(canvas, result)
    letters = _Letters(canvas)
    for label in labels_of(result.detections, letters.width_of, letters.height, canvas.size):
        letters.write(label.text, label.fill, round(label.left), round(label.top))
    rows = range(0, canvas.height - letters.height + 1, letters.height)[:_LINES]
    for top, (text, fill) in zip(rows, lines_of(result), strict=False):
        letters.write(text, fill, 0, top)
    return canvas


def _upright(result: ImageResult, image: ImageSource | None, channels: Channels) -> Image.Image:
    again = getattr(result, "source", lambda: None)
    sent = again() if image is None else image_to_send(image, channels)
    if not isinstance(sent, bytes) or not sent:
        raise ValueError(
            "the result does not contain its image: give plot() the image as a path, bytes or array"
        )
    with Image.open(io.BytesIO(sent)) as file:
        upright = ImageOps.exif_transpose(file)
    if upright.size != (result.width, result.height):
        raise ValueError(
            f"the image has {upright.width}x{upright.height} pixels, and the request's image had "
            f"{result.width}x{result.height}: give plot() the original image (results keep only a "
            "reduced copy of large arrays)"
        )
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    return upright.convert("RGB")


def _depths(depth: Depth) -> Image.Image:
    """Return a depth map as an image whose near pixels are bright.

    Depths in metres are larger for far pixels. Depths without a unit are larger for near pixels.
    """
    # The colours span the 1st to the 99th percentile of the depths. If they spanned the smallest to
    # the largest depth, a few outliers would give all other pixels almost the same colour.
    values = depth.values
    low, high = np.percentile(values, (1, 99))
    levels = ((values - low) / max(high - low, 1e-12) * 255).clip(0, 255).astype(np.uint8)
    near = Image.fromarray(levels if depth.unit is None else 255 - levels)
    return ImageOps.colorize(near, "#000004", "#fcffa4", "#bb3754")


def _tint_classes(canvas: Image.Image, found: Semantic) -> None:
    ids = None if found.png is None else found.class_ids
    tints, weights = Image.new("RGB", canvas.size), Image.new("L", canvas.size)
    # Draw the largest class first. A polygon also covers the holes of its class. The smaller
    # classes in these holes are drawn later, over the polygon.
    for area in found.classes:
        inside = None if ids is None else Image.fromarray(ids == area.class_id)
        if area.mask is not None:
            inside = _inside(area.mask, canvas.size)
        if inside is not None:
            tints.paste(colour(area.class_id), mask=inside)
            weights.paste(0 if area.class_name.casefold() in BACKGROUND else _AREA, mask=inside)
    canvas.paste(tints, mask=weights)


def _inside(mask: Mask, size: tuple[int, int]) -> Image.Image:
    """Return a mask as a 1-bit image."""
    if not isinstance(mask, Outlines):
        return Image.fromarray(mask.pixels)
    inside = Image.new("1", size)
    for outline in mask.polygons:  # in Pillow, (0, 0) is the centre of a pixel, not its corner
        ImageDraw.Draw(inside).polygon([place - 0.5 for place in outline], 1)
    return inside


def _draw_objects(canvas: Image.Image, result: ImageResult) -> None:
    """Draw the best object last, so that nothing covers it."""
    line, pen = max(1, round(sum(canvas.size) * 0.0016)), ImageDraw.Draw(canvas)
    found, fills = result.detections, colours_of(result.detections)
    boxes = np.clip(np.rint(result.boxes), 0, np.subtract(canvas.size * 2, 1)).tolist()
    best_last = list(zip(found, fills, boxes, strict=True))[::-1]
    for each, fill, _ in best_last:
        if each.mask is not None:
            inside = _inside(each.mask, canvas.size).convert("L")
            canvas.paste(fill, mask=inside.point(lambda level: level and _MASK))
    for each, fill, box in best_last:
        if each.corners:
            around = [(corner.x, corner.y) for corner in (*each.corners, *each.corners[:2])]
            pen.line(around, fill, line, joint="curve")
        else:
            pen.rectangle(box, outline=fill, width=line)
        _draw_keypoints(pen, each, fill, line)


def _draw_keypoints(pen: ImageDraw.ImageDraw, found: Detection, fill: Colour, line: int) -> None:
    """Draw the keypoints with a score of at least `SEEN`. For a person, also draw the bones."""
    points = found.keypoints
    seen = [point.score >= SEEN for point in points]
    if tuple(point.name for point in points) == PERSON:
        for one, other in BONES:
            if seen[one] and seen[other]:
                pen.line([(points[end].x, points[end].y) for end in (one, other)], fill, 2 * line)
    for point in compress(points, seen):
        pen.circle((point.x, point.y), 2 * line + 1, "white", fill, line + 1)


class _Letters:
    """Writes lines of text on an image.

    Attributes:
        height: height of a line in pixels.
    """

    def __init__(self, canvas: Image.Image) -> None:
        # The font size keeps labels legible on small images, and grows with large ones.
        letters = round(max(9, min(12, canvas.width / 20), sum(canvas.size) * 0.011))
        self._font = ImageFont.load_default(letters)
        self._margin, self.height = letters // 4, round(letters * 1.4)
        self._pen = ImageDraw.Draw(canvas)

    def width_of(self, text: str) -> int:
        return math.ceil(self._font.getlength(text)) + 2 * self._margin

    def write(self, text: str, fill: Colour, x: int, y: int) -> None:
        self._pen.rectangle((x, y, x + self.width_of(text) - 1, y + self.height - 1), fill)
        start = x + self._margin, y + self.height / 2
        self._pen.text(start, text, ink(fill), self._font, anchor="lm")
