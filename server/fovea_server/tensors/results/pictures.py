"""Writes the pictures that networks make of images as JSON and as tensors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from fovea_engines.detect.map_encoding import picture_png
from fovea_engines.detect.new_image import NewImage
from fovea_engines.detect.options import PredictOptions
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form


def picture_json(found: NewImage, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the size of the picture, and its file."""
    height, width = found.values.shape[:2]
    answer: dict[str, Any] = {"width": width, "height": height}
    if options.mask != "none":
        answer["png"] = base64.b64encode(picture_png(found.levels)).decode("ascii")
    return {"picture": answer}


def picture_tensors(
    found: Sequence[NewImage], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert pictures: ``picture`` FP32 [n, h, w, c], 0 to 1 and a little beyond, and ``sizes``.

    The sides are those of the largest, and all beyond a picture is zero; ``sizes`` INT32 [n, 2]
    has the height and width of each.
    """
    sizes = np.array([one.values.shape[:2] for one in found], np.int32)
    channels = found[0].values.shape[2]
    padded = np.zeros((len(found), *sizes.max(axis=0), channels), np.float32)
    for row, one in zip(padded, found, strict=True):
        row[: one.values.shape[0], : one.values.shape[1]] = one.numbers
    return [OutputTensor("picture", "FP32", padded), OutputTensor("sizes", "INT32", sizes)]


PICTURE = Form(
    NewImage,
    ("image",),
    picture_json,
    picture_tensors,
    lambda head: [("picture", "FP32", (-1, -1, -1, -1)), ("sizes", "INT32", (-1, 2))],
)
