"""Writes masks in the forms that requests ask for, and reads them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypedDict

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.map_encoding import read_levels
from fovea_engines.results.masks import Bitmap, Masks
from fovea_engines.results.options import MaskFormat


class RunLengths(TypedDict):
    """COCO's compressed run lengths of a mask, column by column, as pycocotools reads them.

    `size` is [height, width] of the image.
    """

    size: list[int]
    counts: str


class MaskFile(TypedDict):
    """A PNG file in base64 of the part of an image that holds a mask, 255 on the object.

    `left` and `top` are the place of its first pixel in the image; `size` is the image's.
    """

    size: list[int]
    left: int
    top: int
    png: str


class Outlines(TypedDict):
    """Polygons as COCO has them, x1 y1 x2 y2 ... in pixels of an image of `size`."""

    size: list[int]
    polygons: list[list[float]]


def encode_masks(
    masks: Masks, form: MaskFormat
) -> Iterator[RunLengths | Outlines | MaskFile | None]:
    """Yield each mask in a form."""
    for bitmap in masks.bitmaps():
        match form:
            case "rle":
                yield run_lengths(bitmap, masks.size)
            case "polygon":
                yield {"size": list(masks.size), "polygons": polygons(bitmap)}
            case "png":
                yield mask_file(bitmap, masks.size)
            case "none":
                yield None


def run_lengths(bitmap: Bitmap, size: tuple[int, int]) -> RunLengths:
    """Return the run lengths of a mask in an image of (height, width) pixels."""
    from faster_coco_eval.core import mask as coco

    height, width = size
    rows, columns = bitmap.pixels.shape
    # Column after column with an empty pixel under each, so that every run ends in its own, and one
    # before the first. Comparing bytes that lie in a row is several times as fast as `np.diff`.
    line = np.zeros(1 + columns * (rows + 1), np.uint8)
    if bitmap.pixels.size:
        line[1:].reshape(columns, rows + 1)[:, :rows] = cv2.transpose(bitmap.pixels)
    found = np.flatnonzero(line[1:] != line[:-1])
    edges = np.empty(len(found) + 2, np.int64)
    edges[0], edges[-1] = 0, height * width
    # From the columns of the line to the columns of the image, which are longer.
    edges[1:-1] = found + found // (rows + 1) * (height - rows - 1)
    edges[1:-1] += bitmap.left * height + bitmap.top
    # A run that reaches the last row goes on at the top of the next column.
    if (goes_on := edges[2:-2:2] == edges[3:-1:2]).any():
        edges = edges[np.concatenate([[True, True], ~goes_on.repeat(2), [True, True]])]
    counts = (edges[1:] - edges[:-1]).tolist()
    packed = coco.frPyObjects({"size": [height, width], "counts": counts}, height, width)
    return {"size": [height, width], "counts": packed["counts"].decode("ascii")}


def polygons(bitmap: Bitmap) -> list[list[float]]:
    """Return the outlines of a mask, without its holes."""
    outlines, _ = cv2.findContours(
        bitmap.pixels,
        cv2.RETR_EXTERNAL,
        cv2.CHAIN_APPROX_SIMPLE,
        offset=(bitmap.left, bitmap.top),
    )
    # A contour goes through the centres of pixels; COCO's polygons have three points or more.
    return [(each + 0.5).ravel().tolist() for each in outlines if len(each) > 2]


def mask_file(bitmap: Bitmap, size: tuple[int, int]) -> MaskFile:
    """Return the file of a mask in an image of (height, width) pixels.

    It is not of the whole image: a large one takes longer to pack than its objects to find.
    """
    # No PNG file is empty.
    pixels = bitmap.pixels if bitmap.pixels.size else np.zeros((1, 1), np.uint8)
    _, data = cv2.imencode(".png", pixels * 255, [cv2.IMWRITE_PNG_BILEVEL, 1])
    png = base64.b64encode(data.tobytes()).decode("ascii")
    return {"size": list(size), "left": bitmap.left, "top": bitmap.top, "png": png}


def read_masks(encoded: Sequence[Mapping[str, Any] | None], size: tuple[int, int]) -> Masks:
    """Read the masks of all objects on an image of (height, width); some may have none.

    LookupError, TypeError or ValueError where a mask is in none of the forms, or of another size.
    """
    bitmaps = [_EMPTY if each is None else read_bitmap(each, size) for each in encoded]
    places = np.array(
        [(left, top, left + part.shape[1], top + part.shape[0]) for left, top, part in bitmaps],
        np.float64,
    )
    windows = tuple(part.astype(np.float32) - 0.5 for _, _, part in bitmaps)
    return Masks(windows, places, places, size)


def read_bitmap(mask: Mapping[str, Any], size: tuple[int, int]) -> Bitmap:
    """Read a mask in any form, on an image of (height, width); raises as `read_masks`."""
    height, width = size
    if tuple(mask["size"]) != size:
        raise ValueError(f"a mask is not of {width}x{height} pixels, as its image is")
    if "png" in mask:
        levels, left, top = read_levels(mask["png"]), int(mask["left"]), int(mask["top"])
        # A mask without a pixel is written as one that is 0.
        if (
            levels.ndim != 2
            or min(left, top) < 0
            or (
                levels.size > 1
                and (left + levels.shape[1] > width or top + levels.shape[0] > height)
            )
        ):
            raise ValueError("a mask reaches over the edge of its image")
        return Bitmap(left, top, (levels > 0).view(np.uint8))
    if "counts" in mask:
        whole = _decode(mask["counts"], size)
    else:
        whole = np.zeros(size, np.uint8)
        # They go through the centres of pixels, which OpenCV counts from.
        outlines = [
            (np.array(each, np.float64).reshape(-1, 2) - 0.5).round() for each in mask["polygons"]
        ]
        if not all((np.abs(outline) <= _FARTHEST).all() for outline in outlines):
            raise ValueError("the outline of a mask does not lie in its image")
        cv2.fillPoly(whole, [outline.astype(np.int32) for outline in outlines], 1)
    left, top, width, height = cv2.boundingRect(whole)
    return Bitmap(left, top, np.ascontiguousarray(whole[top : top + height, left : left + width]))


# No library of ours reads larger images.
_MAX_PIXELS = 1 << 30
# OpenCV counts pixels in fixed point.
_FARTHEST = 1 << 15
_EMPTY = Bitmap(0, 0, np.zeros((0, 0), np.uint8))


def read_size(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Return (height, width) of the image of an answer; raises as `read_masks`."""
    height, width = answer["height"], answer["width"]
    if min(height, width) < 1 or height * width > _MAX_PIXELS:
        raise ValueError(f"no image is {width} x {height} pixels large")
    return int(height), int(width)


def _decode(counts: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the mask of run lengths, uint8 [height, width]; ValueError where they do not fit.

    Numbers are written in groups of five bits from the lowest, in the characters from "0" on, and
    from the third on as the difference to the number before the last (cocoapi's `rleFrString`).
    """
    groups = np.frombuffer(counts.encode("ascii"), np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero(groups & 0x20 == 0)
    starts = np.concatenate([[0], ends + 1])
    digits = np.diff(starts)
    if not len(ends) or starts[-1] != len(groups) or digits.max() > 12:
        raise ValueError("the run lengths of a mask are cut off")
    place = 5 * (np.arange(len(groups)) - starts[:-1].repeat(digits))
    numbers = np.add.reduceat((groups & 0x1F) << place, starts[:-1])
    numbers -= (groups[ends] >> 4 & 1) << 5 * digits
    for first in (1, 2):
        numbers[first::2] = numbers[first::2].cumsum()
    height, width = size
    edges = numbers.cumsum().tolist()
    if numbers.min() < 0 or edges[-1] != height * width:
        raise ValueError("the run lengths of a mask do not fit its size")
    pixels = np.zeros(width * height, np.uint8)
    for start, end in [*pairwise(edges)][::2]:
        pixels[start:end] = 1
    return pixels.reshape(width, height).T
