"""Writes the maps of images as JSON and as tensors: classes, foreground, depths."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.map_encoding import class_png, depth_png, mask_png
from fovea_engines.detect.maps import NOTHING, ClassMap, DepthMap, SoftMask
from fovea_engines.detect.mask_encoding import Outlines, RunLengths, polygons, run_lengths
from fovea_engines.detect.masks import Bitmap
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form, Listed


def class_map_json(found: ClassMap, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the classes of an image, the largest first, with their masks or one map."""
    ids = found.pixels()
    counts = np.bincount(ids.ravel(), minlength=NOTHING + 1)[:NOTHING]
    largest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    classes: list[dict[str, Any]] = [
        {
            "class_id": class_id,
            "class_name": class_name(words.labels, class_id),
            "pixels": int(counts[class_id]),
            "share": round(int(counts[class_id]) / ids.size, 5),
        }
        for class_id in largest_first.tolist()
    ]
    if options.mask in ("rle", "polygon"):
        for each in classes:
            each["mask"] = _mask(ids, each["class_id"], polygon=options.mask == "polygon")
    answer: dict[str, Any] = {"classes": classes}
    if options.mask == "png":
        answer["png"] = _base64(class_png(ids))
    return {"semantic": answer}


def foreground_json(found: SoftMask, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the share of the foreground, and its mask."""
    values = found.pixels()
    answer: dict[str, Any] = {"share": round(float(values.mean()), 5)}
    if options.mask != "none":
        answer["png"] = _base64(mask_png(values))
    return {"saliency": answer}


def depth_json(found: DepthMap, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the range of the depths, and their map."""
    values = found.pixels()
    answer: dict[str, Any] = {
        "min": float(values.min()),
        "max": float(values.max()),
        "unit": "m" if found.metres else None,
    }
    if options.mask != "none":
        file = depth_png(values)
        answer |= {"png": _base64(file.png), "scale": file.scale, "offset": file.offset}
    return {"depth": answer}


def _mask(ids: NDArray[np.uint16], class_id: int, *, polygon: bool) -> RunLengths | Outlines:
    pixels = (ids == class_id).view(np.uint8)
    left, top, width, height = cv2.boundingRect(pixels)
    bitmap = Bitmap(left, top, pixels[top : top + height, left : left + width])
    height, width = ids.shape
    if polygon:
        return {"size": [height, width], "polygons": polygons(bitmap)}
    return run_lengths(bitmap, (height, width))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def class_map_tensors(
    found: Sequence[ClassMap], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert classes: `class_map` UINT16 [n, h, w], 65535 where the request leaves a class out.

    Of any map, h and w are the sides of the largest image, and all beyond an image is zero;
    `sizes` INT32 [n, 2] has the height and width of each.
    """
    return _map("class_map", "UINT16", [one.pixels() for one in found], np.uint16)


def foreground_tensors(
    found: Sequence[SoftMask], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert a foreground: `saliency` FP32 [n, h, w], 0 to 1, and `sizes`."""
    return _map("saliency", "FP32", [one.pixels() for one in found], np.float32)


def depth_tensors(
    found: Sequence[DepthMap], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert depths: `depth` FP32 [n, h, w], and `sizes`."""
    return _map("depth", "FP32", [one.pixels() for one in found], np.float32)


def _map(name: str, datatype: str, maps: Sequence[Array], dtype: DTypeLike) -> list[OutputTensor]:
    sizes = np.array([each.shape for each in maps], np.int32)
    padded = np.zeros((len(maps), *sizes.max(axis=0)), dtype)
    for row, each in zip(padded, maps, strict=True):
        row[: each.shape[0], : each.shape[1]] = each
    return [OutputTensor(name, datatype, padded), OutputTensor("sizes", "INT32", sizes)]


def _listed(name: str, datatype: str) -> Callable[[Head], list[Listed]]:
    tensors = [(name, datatype, (-1, -1, -1)), ("sizes", "INT32", (-1, 2))]
    return lambda head: tensors


CLASS_MAP = Form(
    ClassMap, ("semantic",), class_map_json, class_map_tensors, _listed("class_map", "UINT16")
)
FOREGROUND = Form(
    SoftMask, ("saliency",), foreground_json, foreground_tensors, _listed("saliency", "FP32")
)
DEPTH = Form(DepthMap, ("depth",), depth_json, depth_tensors, _listed("depth", "FP32"))
