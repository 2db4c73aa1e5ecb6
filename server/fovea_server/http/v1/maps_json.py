"""Writes maps as JSON."""

from __future__ import annotations

import base64
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.map_encoding import class_png, depth_png, mask_png
from fovea_engines.detect.maps import NOTHING, ClassMap, DepthMap, SoftMask
from fovea_engines.detect.mask_encoding import Polygons, RunLengths, polygons, run_lengths
from fovea_engines.detect.masks import Bitmap
from fovea_engines.detect.options import PredictOptions
from fovea_server.tensors.image_messages import Vocabulary


def classes_json(found: ClassMap, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
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


def _mask(ids: NDArray[np.uint16], class_id: int, *, polygon: bool) -> RunLengths | Polygons:
    pixels = (ids == class_id).view(np.uint8)
    left, top, width, height = cv2.boundingRect(pixels)
    bitmap = Bitmap(left, top, pixels[top : top + height, left : left + width])
    return polygons(bitmap) if polygon else run_lengths(bitmap, (ids.shape[0], ids.shape[1]))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
