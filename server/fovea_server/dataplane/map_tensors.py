"""Writes maps as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from fovea_engines.detect.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor


def class_tensors(
    first: ClassMap, found: Sequence[ClassMap], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert classes: `class_map` UINT16 [n, h, w], 65535 where the request leaves a class out.

    Of any map, h and w are those of the largest image, and what lies beyond an image is zero;
    `sizes` INT32 [n, 2] has the height and width of each.
    """
    return _tensors("class_map", "UINT16", [one.pixels() for one in found], np.uint16)


def foreground_tensors(
    first: SoftMask, found: Sequence[SoftMask], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert a foreground: `saliency` FP32 [n, h, w], 0 to 1, and `sizes`."""
    return _tensors("saliency", "FP32", [one.pixels() for one in found], np.float32)


def depth_tensors(
    first: DepthMap, found: Sequence[DepthMap], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert depths: `depth` FP32 [n, h, w], and `sizes`."""
    return _tensors("depth", "FP32", [one.pixels() for one in found], np.float32)


def _tensors(
    name: str, datatype: str, maps: Sequence[Array], dtype: DTypeLike
) -> list[OutputTensor]:
    sizes = np.array([each.shape for each in maps], np.int32)
    padded = np.zeros((len(maps), *sizes.max(axis=0)), dtype)
    for row, each in zip(padded, maps, strict=True):
        row[: each.shape[0], : each.shape[1]] = each
    return [OutputTensor(name, datatype, padded), OutputTensor("sizes", "INT32", sizes)]
