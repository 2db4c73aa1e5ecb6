"""Converts masks to the formats of responses, and reads these formats."""

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
    """A mask in COCO's compressed run-length encoding, column by column, as pycocotools reads it.

    `size` is the (height, width) of the image in pixels.
    """

    size: list[int]
    counts: str


class MaskFile(TypedDict):
    """A mask as a PNG file in base64. Pixels of the object have the value 255.

    The file covers only the part of the image that contains the object. `left` and `top` are the
    position of the file's first pixel in the image. `size` is the (height, width) of the whole
    image. The unit is the pixel.
    """

    size: list[int]
    left: int
    top: int
    png: str


class Outlines(TypedDict):
    """A mask as COCO polygons, x1 y1 x2 y2 ... in pixels; `size` is the image's (height, width)."""

    size: list[int]
    polygons: list[list[float]]


def encode_masks(
    masks: Masks, form: MaskFormat
) -> Iterator[RunLengths | Outlines | MaskFile | None]:
    """Yield each mask in the requested format. For the format "none", yield None for each mask."""
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
    """Return the run-length encoding of a mask in an image of (height, width) pixels."""
    from faster_coco_eval.core import mask as coco

    height, width = size
    rows, columns = bitmap.pixels.shape
    # `line` holds all columns one after the other. An empty pixel follows each column, so that
    # every run ends in its own column. Another empty pixel comes first. The comparison of adjacent
    # bytes is several times faster than `np.diff`.
    line = np.zeros(1 + columns * (rows + 1), np.uint8)
    if bitmap.pixels.size:
        line[1:].reshape(columns, rows + 1)[:, :rows] = cv2.transpose(bitmap.pixels)
    found = np.flatnonzero(line[1:] != line[:-1])
    edges = np.empty(len(found) + 2, np.int64)
    edges[0], edges[-1] = 0, height * width
    # Convert positions in `line` to positions in the image. The columns of the image are longer.
    edges[1:-1] = found + found // (rows + 1) * (height - rows - 1)
    edges[1:-1] += bitmap.left * height + bitmap.top
    # A run that reaches the last row may continue at the top of the next column. Join such runs.
    if (goes_on := edges[2:-2:2] == edges[3:-1:2]).any():
        edges = edges[np.concatenate([[True, True], ~goes_on.repeat(2), [True, True]])]
    counts = (edges[1:] - edges[:-1]).tolist()
    packed = coco.frPyObjects({"size": [height, width], "counts": counts}, height, width)
    return {"size": [height, width], "counts": packed["counts"].decode("ascii")}


def polygons(bitmap: Bitmap) -> list[list[float]]:
    """Return the outer contours of a mask as polygons, without its holes."""
    outlines, _ = cv2.findContours(
        bitmap.pixels,
        cv2.RETR_EXTERNAL,
        cv2.CHAIN_APPROX_SIMPLE,
        offset=(bitmap.left, bitmap.top),
    )
    # Add 0.5, because OpenCV's contours go through the centres of pixels. Drop contours with fewer
    # than three points, because COCO does not allow them.
    return [(each + 0.5).ravel().tolist() for each in outlines if len(each) > 2]


def mask_file(bitmap: Bitmap, size: tuple[int, int]) -> MaskFile:
    """Return the PNG file of a mask in an image of (height, width) pixels.

    The file covers only the mask's bounding box: compressing a large whole image can take longer
    than detecting its objects.
    """
    # If the mask is empty, write one black pixel: a PNG file must have at least one pixel.
    pixels = bitmap.pixels if bitmap.pixels.size else np.zeros((1, 1), np.uint8)
    _, data = cv2.imencode(".png", pixels * 255, [cv2.IMWRITE_PNG_BILEVEL, 1])
    png = base64.b64encode(data.tobytes()).decode("ascii")
    return {"size": list(size), "left": bitmap.left, "top": bitmap.top, "png": png}


def read_masks(encoded: Sequence[Mapping[str, Any] | None], size: tuple[int, int]) -> Masks:
    """Read the masks of all objects in an image of (height, width) pixels.

    None in `encoded` stands for an object without a mask.

    Raises:
        LookupError: a mask has none of the known formats.
        TypeError: a value has the wrong type.
        ValueError: a mask has another size, or its data are damaged.
    """
    bitmaps = [_EMPTY if each is None else read_bitmap(each, size) for each in encoded]
    places = np.array(
        [(left, top, left + part.shape[1], top + part.shape[0]) for left, top, part in bitmaps],
        np.float64,
    )
    windows = tuple(part.astype(np.float32) - 0.5 for _, _, part in bitmaps)
    return Masks(windows, places, places, size)


def read_bitmap(mask: Mapping[str, Any], size: tuple[int, int]) -> Bitmap:
    """Read a mask in any format, in an image of (height, width) pixels.

    `read_masks` describes the errors.
    """
    height, width = size
    if tuple(mask["size"]) != size:
        raise ValueError(f"a mask does not have the {width}x{height} pixels of its image")
    if "png" in mask:
        levels, left, top = read_levels(mask["png"]), int(mask["left"]), int(mask["top"])
        # An empty mask is written as one black pixel. This pixel may lie outside the image, at its
        # edge.
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
        # Subtract 0.5: in polygons the centre of the first pixel is at 0.5, and in OpenCV at 0.
        outlines = [
            (np.array(each, np.float64).reshape(-1, 2) - 0.5).round() for each in mask["polygons"]
        ]
        if not all((np.abs(outline) <= _FARTHEST).all() for outline in outlines):
            raise ValueError("the outline of a mask reaches over the edge of its image")
        cv2.fillPoly(whole, [outline.astype(np.int32) for outline in outlines], 1)
    left, top, width, height = cv2.boundingRect(whole)
    return Bitmap(left, top, np.ascontiguousarray(whole[top : top + height, left : left + width]))


# Largest number of pixels of an image. The image libraries do not read larger images.
_MAX_PIXELS = 1 << 30
# Largest coordinate of a polygon in pixels. OpenCV draws with fixed-point numbers, which cannot
# hold much larger coordinates.
_FARTHEST = 1 << 15
_EMPTY = Bitmap(0, 0, np.zeros((0, 0), np.uint8))


def read_size(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Return the (height, width) of the image of a response. `read_masks` describes the errors."""
    height, width = answer["height"], answer["width"]
    if min(height, width) < 1 or height * width > _MAX_PIXELS:
        raise ValueError(f"{width} x {height} is not a valid image size")
    return int(height), int(width)


def _decode(counts: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode COCO run lengths to a mask, uint8 [height, width].

    The format is the one of cocoapi's `rleFrString`. Each number is split into groups of five bits,
    lowest group first, and each group is one character, beginning at "0". From the fourth number
    on, the text holds the difference between a number and the number two places before it.

    Raises:
        ValueError: the text is cut off, or the runs do not add up to the size.
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
        raise ValueError("the run lengths of a mask do not add up to its number of pixels")
    pixels = np.zeros(width * height, np.uint8)
    for start, end in [*pairwise(edges)][::2]:
        pixels[start:end] = 1
    return pixels.reshape(width, height).T
