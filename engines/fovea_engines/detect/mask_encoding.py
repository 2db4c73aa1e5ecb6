"""Writes masks in the forms that requests ask for."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TypedDict

import cv2
import numpy as np

from fovea_engines.detect.masks import Bitmap, Masks
from fovea_engines.detect.options import MaskFormat


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


def encoded_masks(
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
