"""Draws objects: masks, boxes, upright or rotated, keypoints and names."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.drawing.tags import draw_tag, place
from fovea_engines.results.class_names import shown_name
from fovea_engines.results.colours import Colour, colour, shades
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import Bitmap, Masks
from fovea_engines.results.rotated import corners as rotated_corners
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.vocabulary import Vocabulary

# Share of a mask's colour over the image: an object stays recognisable under it.
_OPACITY = 0.45
# Keypoints of a lower score are mostly hidden, and guessed.
_VISIBLE = 0.5
_JOINT = (255, 255, 255)
# Length of an arrowhead, in widths of a line; in a small rectangle its height.
_ARROW = 11
# Half of its width over its length.
_SPREAD = 0.38


def draw_objects(
    found: Detections,
    pixels: NDArray[np.uint8],
    words: Vocabulary,
) -> NDArray[np.uint8]:
    """Draw objects as `draw` does."""
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    line = max(1, round((height + width) * 0.0016))
    class_ids = found.class_ids.tolist()
    colours = [colour(class_id) for class_id in class_ids]
    if found.masks is not None:
        colours = list(map(colour, class_ids, shades(class_ids, found.boxes.tolist())))
        _draw_masks(canvas, found.masks, colours, line)
    corners = np.clip(found.boxes.round(), 0, [width - 1, height - 1] * 2).astype(np.int64)
    # The best box is drawn last, so that nothing covers it; tags are drawn over all boxes.
    if found.rotated is not None:
        _draw_rotated(canvas, found.rotated, colours, line)
    else:
        for (x1, y1, x2, y2), fill in zip(corners[::-1].tolist(), colours[::-1], strict=True):
            cv2.rectangle(canvas, (x1, y1), (x2, y2), fill, line, cv2.LINE_AA)
    if found.keypoints is not None:
        for points, fill in zip(found.keypoints[::-1], colours[::-1], strict=True):
            _draw_keypoints(canvas, points, words.skeleton, fill, line)
    names = [shown_name(words.labels, i) for i in class_ids]
    if found.track_ids is not None:
        known = zip(names, found.track_ids.tolist(), strict=True)
        names = [f"{name} #{track}" if track > 0 else name for name, track in known]
    if found.findings is not None:
        said = zip(names, found.findings, strict=True)
        names = [", ".join([name, *(f.caption for f in more if f.caption)]) for name, more in said]
    reach = np.array([-(line // 2)] * 2 + [line // 2 + 1] * 2)
    edges = np.clip(corners + reach, 0, [width, height] * 2)
    tags = place(
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
    canvas: NDArray[np.uint8], rotated: NDArray[np.float32], colours: Sequence[Colour], line: int
) -> None:
    """Draw rectangles [n, 5], the first last, with an arrowhead where the angle points."""
    outlines = rotated_corners(rotated)
    for outline, row, fill in list(zip(outlines, rotated, colours, strict=True))[::-1]:
        length = min(float(row[3]), _ARROW * line)
        tip = (outline[1] + outline[2]) / 2
        ahead = np.array([np.cos(row[4]), np.sin(row[4])]) * length
        aside = ahead[::-1] * [-_SPREAD, _SPREAD]
        arrow = np.stack([tip, tip - ahead + aside, tip - ahead - aside])
        cv2.polylines(canvas, [_pixels(outline)], True, fill, line, cv2.LINE_AA)
        cv2.fillPoly(canvas, [_pixels(arrow)], fill, cv2.LINE_AA)


def _pixels(points: NDArray[np.floating]) -> NDArray[np.int32]:
    return points.round().astype(np.int32)


def _draw_masks(
    canvas: NDArray[np.uint8], masks: Masks, colours: Sequence[Colour], line: int
) -> None:
    """Tint each object, the best last, and outline it."""
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


def _tint(canvas: NDArray[np.uint8], bitmap: Bitmap, fill: Colour) -> None:
    height, width = bitmap.pixels.shape
    part = canvas[bitmap.top : bitmap.top + height, bitmap.left : bitmap.left + width]
    inside = bitmap.pixels.view(np.bool_)
    tinted = part[inside] * (1 - _OPACITY) + np.array(fill) * _OPACITY
    part[inside] = tinted.round().astype(np.uint8)


def _draw_keypoints(
    canvas: NDArray[np.uint8],
    points: NDArray[np.float32],
    skeleton: Skeleton | None,
    fill: Colour,
    line: int,
) -> None:
    """Draw the bones between keypoints that are seen, and white joints."""
    seen = (points[:, 2] >= _VISIBLE) & (np.abs(points[:, :2]) < 1e6).all(axis=1)
    places = np.where(seen[:, None], points[:, :2], 0).round().astype(int).tolist()
    for one, other in () if skeleton is None else skeleton.bones:
        if seen[one] and seen[other]:
            cv2.line(canvas, places[one], places[other], fill, 2 * line, cv2.LINE_AA)
    # Small on a small object, such as a face, so that the points stay apart.
    span = int(np.ptp(points[seen, :2], axis=0).max()) if seen.any() else 0
    radius = max(2, min(2 * line + 1, span // 16))
    for place_, visible in zip(places, seen, strict=True):
        if visible:
            cv2.circle(canvas, place_, radius, fill, -1, cv2.LINE_AA)
            cv2.circle(canvas, place_, radius // 2, _JOINT, -1, cv2.LINE_AA)
