"""Draws the results of a model into an image, and encodes it as a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.drawing.tags import FONT, Tag, draw_tag, letter
from fovea_engines.drawing.tags import place as place_tags
from fovea_engines.results.class_names import shown_name
from fovea_engines.results.colours import Colour, colour, shades
from fovea_engines.results.detections import Detections
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.masks import Bitmap, Masks
from fovea_engines.results.new_image import MediaType, NewImage
from fovea_engines.results.rotated import corners as rotated_corners
from fovea_engines.results.skeleton import SEEN, Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidOption

Pixels = NDArray[np.uint8]


@singledispatch
def draw(found: TaskResult, pixels: Pixels, vocabulary: Vocabulary) -> Pixels:
    """Return a copy of an image with the results of a model drawn on it.

    If a task has no special drawing, the result is listed as lines of text in a corner. If the
    result is an output image, this image is returned. A class without a label is drawn with its
    number. A class has the same colour in all images. Line widths and letters scale with the image.

    Args:
        found: result in pixels of this image.
        pixels: image, uint8 RGB [h, w, 3].
        vocabulary: names of classes and keypoints.
    """
    return _draw_lines(found.lines(vocabulary.labels), pixels)


@draw.register
def _draw_picture(found: NewImage, pixels: Pixels, vocabulary: Vocabulary) -> Pixels:
    return found.rgb


def annotate(
    found: TaskResult, pixels: Pixels, vocabulary: Vocabulary, media_type: MediaType
) -> bytes:
    """Draw a result with `draw`, and encode the image.

    If the result is a `SoftMask` and the format is PNG or WebP, the background of the image becomes
    transparent instead.
    """
    if isinstance(found, SoftMask) and media_type != "image/jpeg":
        return encode(cut_out(found, pixels), media_type)
    return encode(draw(found, pixels, vocabulary), media_type)


# Opacity of a mask's colour. The object must stay recognisable under the colour.
_MASK_OPACITY = 0.45
_JOINT = (255, 255, 255)
# Length of an arrowhead, as a multiple of the line width. It is at most the rectangle's height.
_ARROW = 11
# Half the width of an arrowhead divided by its length.
_SPREAD = 0.38


@draw.register
def _draw_objects(found: Detections, pixels: Pixels, vocabulary: Vocabulary) -> Pixels:
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    line = max(1, round((height + width) * 0.0016))
    class_ids = found.class_ids.tolist()
    colours = [colour(class_id) for class_id in class_ids]
    if found.masks is not None:
        colours = list(map(colour, class_ids, shades(class_ids, found.boxes.tolist())))
        _draw_masks(canvas, found.masks, colours, line)
    corners = np.clip(found.boxes.round(), 0, [width - 1, height - 1] * 2).astype(np.int64)
    # Draw the best box last, so that no other box covers it. Tags (names) are drawn after all
    # boxes.
    if found.rotated is not None:
        _draw_rotated(canvas, found.rotated, colours, line)
    else:
        for (x1, y1, x2, y2), fill in zip(corners[::-1].tolist(), colours[::-1], strict=True):
            cv2.rectangle(canvas, (x1, y1), (x2, y2), fill, line, cv2.LINE_AA)
    if found.keypoints is not None:
        for points, fill in zip(found.keypoints[::-1], colours[::-1], strict=True):
            _draw_keypoints(canvas, points, vocabulary.skeleton, fill, line)
    names = [shown_name(vocabulary.labels, i) for i in class_ids]
    if found.track_ids is not None:
        known = zip(names, found.track_ids.tolist(), strict=True)
        names = [f"{name} #{track}" if track > 0 else name for name, track in known]
    if found.stage_results is not None:
        stage_results = zip(names, found.stage_results, strict=True)
        names = [
            ", ".join([name, *(f.caption for f in more if f.caption)])
            for name, more in stage_results
        ]
    reach = np.array([-(line // 2)] * 2 + [line // 2 + 1] * 2)
    edges = np.clip(corners + reach, 0, [width, height] * 2)
    tags = place_tags(
        [(x1, y1, x2, y2) for x1, y1, x2, y2 in edges.tolist()],
        names,
        found.scores.tolist(),
        (width, height),
    )
    for tag, fill in zip(tags, colours, strict=True):
        if tag is not None:
            draw_tag(canvas, tag, fill)
    return canvas


def _draw_rotated(
    canvas: Pixels, rotated: NDArray[np.float32], colours: Sequence[Colour], line: int
) -> None:
    """Draw rectangles [n, 5] with an arrowhead that shows the angle. The first is drawn last."""
    outlines = rotated_corners(rotated)
    for outline, row, fill in list(zip(outlines, rotated, colours, strict=True))[::-1]:
        length = min(float(row[3]), _ARROW * line)
        tip = (outline[1] + outline[2]) / 2
        ahead = np.array([np.cos(row[4]), np.sin(row[4])]) * length
        aside = ahead[::-1] * [-_SPREAD, _SPREAD]
        arrow = np.stack([tip, tip - ahead + aside, tip - ahead - aside])
        cv2.polylines(canvas, [_rounded(outline)], True, fill, line, cv2.LINE_AA)
        cv2.fillPoly(canvas, [_rounded(arrow)], fill, cv2.LINE_AA)


def _rounded(points: NDArray[np.floating]) -> NDArray[np.int32]:
    return points.round().astype(np.int32)


def _draw_masks(canvas: Pixels, masks: Masks, colours: Sequence[Colour], line: int) -> None:
    """Draw the mask and the outline of each object. The best object is drawn last."""
    for bitmap, fill in reversed(list(zip(masks.bitmaps(), colours, strict=True))):
        if bitmap.pixels.any():
            _tint(canvas, bitmap, fill)
            outlines, _ = cv2.findContours(
                bitmap.pixels,
                cv2.RETR_EXTERNAL,
                cv2.CHAIN_APPROX_SIMPLE,
                offset=(bitmap.left, bitmap.top),
            )
            cv2.drawContours(canvas, outlines, -1, fill, line, cv2.LINE_AA)


def _tint(canvas: Pixels, bitmap: Bitmap, fill: Colour) -> None:
    height, width = bitmap.pixels.shape
    part = canvas[bitmap.top : bitmap.top + height, bitmap.left : bitmap.left + width]
    inside = bitmap.pixels.view(np.bool_)
    tinted = part[inside] * (1 - _MASK_OPACITY) + np.array(fill) * _MASK_OPACITY
    part[inside] = tinted.round().astype(np.uint8)


def _draw_keypoints(
    canvas: Pixels, points: NDArray[np.float32], skeleton: Skeleton | None, fill: Colour, line: int
) -> None:
    """Draw the visible keypoints as white dots, and the bones between them."""
    seen = (points[:, 2] >= SEEN) & (np.abs(points[:, :2]) < 1e6).all(axis=1)
    places = np.where(seen[:, None], points[:, :2], 0).round().astype(int).tolist()
    for one, other in () if skeleton is None else skeleton.bones:
        if seen[one] and seen[other]:
            cv2.line(canvas, places[one], places[other], fill, 2 * line, cv2.LINE_AA)
    # The dots are smaller on small objects, such as faces, so that they do not overlap.
    span = int(np.ptp(points[seen, :2], axis=0).max()) if seen.any() else 0
    radius = max(2, min(2 * line + 1, span // 16))
    for at, visible in zip(places, seen, strict=True):
        if visible:
            cv2.circle(canvas, at, radius, fill, -1, cv2.LINE_AA)
            cv2.circle(canvas, at, radius // 2, _JOINT, -1, cv2.LINE_AA)


# Opacity of a class's colour in a class map.
_MAP_OPACITY = 0.55
# Names of the background class, which is not coloured. In models without class names, the
# background is usually the first class.
_BACKGROUND = ("background", "class 0")
# Smallest fraction of the image that a listed class covers. A smaller fraction would be printed as
# 0.0%.
_MIN_SHARE = 0.0005
# Factor for the brightness of the background. The foreground keeps its brightness.
_DIMMED = 0.25
# Percentiles of the depths at the ends of the colour scale. If the scale covered the full range, a
# few extreme depths would give all other depths almost the same colour.
_RANGE = (1, 99)
# Palette for depths. It is perceptually uniform: equal differences in depth look equal.
_PALETTE = cv2.COLORMAP_INFERNO


@draw.register
def _draw_class_map(found: ClassMap, pixels: Pixels, vocabulary: Vocabulary) -> Pixels:
    """Draw classes in their colours. List their names and fractions of the image in a corner."""
    ids = found.pixels()
    counts = np.bincount(ids.ravel(), minlength=NOTHING + 1)[:NOTHING]
    present = [
        class_id
        for class_id in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        if shown_name(vocabulary.labels, class_id).casefold() not in _BACKGROUND
    ]
    palette = np.zeros((NOTHING + 1, 3), np.uint8)
    for class_id in present:
        palette[class_id] = colour(class_id)
    coloured = np.isin(ids, present)
    canvas = np.ascontiguousarray(pixels).copy()
    tinted = cv2.addWeighted(canvas, 1 - _MAP_OPACITY, palette[ids], _MAP_OPACITY, 0)
    np.copyto(canvas, np.asarray(tinted, np.uint8), where=coloured[..., None])
    rows = [
        (f"{shown_name(vocabulary.labels, one)} {share:.1%}", colour(one))
        for one in present[:_MAX_LINES]
        if (share := counts[one] / ids.size) >= _MIN_SHARE
    ]
    _draw_class_shares(canvas, rows)
    return canvas


@draw.register
def _draw_foreground(found: SoftMask, pixels: Pixels, vocabulary: Vocabulary) -> Pixels:
    """Darken the background of an image."""
    light = _DIMMED + (1 - _DIMMED) * found.pixels()
    return (pixels * light[..., None]).round().astype(np.uint8)


def cut_out(found: SoftMask, pixels: Pixels) -> Pixels:
    """Return the image as uint8 RGBA [h, w, 4] with a transparent background."""
    alpha = (found.pixels() * 255).round().astype(np.uint8)
    return np.dstack([pixels, alpha])


@draw.register
def _draw_depth(found: DepthMap, pixels: Pixels, vocabulary: Vocabulary) -> Pixels:
    """Draw depths as colours, with a scale in the corner.

    Near pixels are bright. If the model has no unit, pixels with large values are bright.
    """
    values = found.pixels()
    low, high = np.percentile(values, _RANGE)
    levels = ((values - low) * (255 / max(high - low, 1e-12))).clip(0, 255).astype(np.uint8)
    steps = np.arange(256, dtype=np.uint8)
    if found.metres:
        levels, steps = 255 - levels, steps[::-1]
    canvas = _colour_levels(levels)
    unit = " m" if found.metres else ""
    _draw_scale(canvas, _colour_levels(steps[None]), f"{low:.3g}{unit}", f"{high:.3g}{unit}")
    return canvas


def _colour_levels(levels: Pixels) -> Pixels:
    bgr = cv2.applyColorMap(np.ascontiguousarray(levels), _PALETTE)
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def _draw_class_shares(canvas: Pixels, rows: Sequence[tuple[str, Colour]]) -> None:
    """Write lines of text at the top left, each on its colour. Leave out lines that do not fit."""
    height, width = canvas.shape[:2]
    scale = _map_letter_scale(height, width)
    margin = top = round(12 * scale)
    for text, fill in rows:
        lettering = letter(text, scale)
        if top + lettering.height > height or margin + lettering.width > width:
            return
        draw_tag(canvas, Tag(lettering, margin, top), fill)
        top += lettering.height


def _draw_scale(canvas: Pixels, colours: Pixels, low: str, high: str) -> None:
    """Draw a colour bar at the bottom left, with the depths of its ends beside it.

    `colours` are the colours of the bar, [1, n, 3].
    """
    height, width = canvas.shape[:2]
    scale = _map_letter_scale(height, width)
    margin, length = round(12 * scale), width // 4
    ends = letter(low, scale), letter(high, scale)
    top, across = height - margin - ends[0].height, sum(each.width for each in ends) + length
    if top < 0 or margin + across > width or not length:
        return
    left = margin + ends[0].width
    bar = cv2.resize(colours, (length, ends[0].height), interpolation=cv2.INTER_LINEAR)
    canvas[top : top + ends[0].height, left : left + length] = bar
    for lettering, at, fill in zip(ends, (margin, left + length), (0, -1), strict=True):
        red, green, blue = colours[0, fill].tolist()
        draw_tag(canvas, Tag(lettering, at, top), (red, green, blue))


def _map_letter_scale(height: int, width: int) -> float:
    """Return the scale of OpenCV's font for an image of this size."""
    return max(0.4, (height + width) * 0.00036)


# Scale of OpenCV's font for lists: the scale per pixel of the image's shorter side, and the
# minimum.
_SCALE, _SMALLEST = 0.0011, 0.35
# Largest number of lines of text on an image. More lines would hide the image.
_MAX_LINES = 10


def _draw_lines(lines: Iterable[tuple[str, int]], pixels: Pixels) -> Pixels:
    """Return a copy of an image with up to ten lines of text. Lines that do not fit are left out.

    Args:
        lines: texts, each with the class id that determines its colour.
        pixels: image, uint8 RGB [h, w, 3].
    """
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    scale = max(_SMALLEST, min(height, width) * _SCALE)
    top = 0
    for text, number in list(lines)[:_MAX_LINES]:
        line = letter(text, scale)
        if top + line.height > height:
            break
        shown = line._replace(width=min(line.width, width))
        draw_tag(canvas, Tag(shown, 0, top), colour(number))
        top += line.height
    return canvas


# Layout of captions: height and margin in pixels, and the scale of OpenCV's font.
_STRIP, _GAP, _CAPTION_LETTERS = 40, 16, 0.7


def add_caption(image: Pixels, text: str) -> Pixels:
    """Add a caption above an image. The image becomes wider on the right if the text needs it."""
    height, width = image.shape[:2]
    (text_width, text_height), _ = cv2.getTextSize(text, FONT, _CAPTION_LETTERS, 1)
    pane = np.zeros((_STRIP + height, max(width, text_width + _GAP) + _GAP, 3), np.uint8)
    pane[_STRIP:, :width] = image
    origin = _GAP // 2, (_STRIP + text_height) // 2
    cv2.putText(pane, text, origin, FONT, _CAPTION_LETTERS, (255, 255, 255), 1, cv2.LINE_AA)
    return pane


_QUALITY = 92
_FORMS: Mapping[MediaType, tuple[str, Sequence[int], int]] = {
    "image/jpeg": (".jpg", [cv2.IMWRITE_JPEG_QUALITY, _QUALITY], 65_535),
    "image/png": (".png", [], 2**31 - 1),
    "image/webp": (".webp", [cv2.IMWRITE_WEBP_QUALITY, _QUALITY], 16_383),
}
"""Format -> file suffix, OpenCV's settings for the format, and largest side in pixels."""


def encode(pixels: Pixels, media_type: MediaType) -> bytes:
    """Encode an image as a JPEG or WebP file (quality 92) or as a PNG file.

    Args:
        pixels: uint8 RGB [h, w, 3]; or RGBA [h, w, 4], except for JPEG.
        media_type: format of the file.

    Raises:
        InvalidOption: a side is larger than the format allows.
    """
    suffix, settings, longest = _FORMS[media_type]
    if max(pixels.shape[:2]) > longest:
        raise InvalidOption(
            f"the image would have {pixels.shape[1]}x{pixels.shape[0]} pixels, but a side of "
            f"{media_type} can have at most {longest}: request image/png"
        )
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(suffix, bgr, settings)
    return bytes(data)
