"""Writes what a model found on some images as tensors; one function for each task."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import orjson
from numpy.typing import DTypeLike

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.detect.mask_encoding import encoded_masks
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.task_result import TaskResult
from fovea_engines.session import Array
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor


@singledispatch
def result_tensors(
    first: TaskResult, found: Sequence[TaskResult], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert what was found on n images, of which `first` is one, to tensors [n, ...]."""
    raise NotImplementedError(type(first).__name__)


@result_tensors.register
def _objects(
    first: Detections, found: Sequence[Detections], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert objects.

    Returns:
        ``num_detections`` INT32 [n]; ``boxes`` FP32 [n, k, 4], x1 y1 x2 y2 in pixels of the
        upright image; ``scores`` FP32 [n, k]; ``class_ids`` INT32 [n, k]; ``class_names`` BYTES
        [n, k]. k is the largest number of objects on one image; the other rows are zero.
        ``masks`` BYTES [n, k] of a segmenter: JSON, as /v1 has it. ``keypoints`` FP32 [n, k,
        points, 3] of a pose model: x y in pixels, score.
        ``rotated`` FP32 [n, k, 5] of rotated boxes: cx cy w h in pixels, angle in radians.
    """
    most = max(map(len, found))
    counts = np.array([len(one) for one in found], np.int32)
    tensors = [
        OutputTensor("num_detections", "INT32", counts),
        OutputTensor("boxes", "FP32", _padded([one.boxes for one in found], most, np.float32)),
        *_scored_classes(found, most, words),
    ]
    masks = [one.masks for one in found if one.masks is not None]
    if masks:
        encoded = np.full((len(found), most), b"", object)
        for row, of_image in enumerate(masks):
            for column, mask in enumerate(encoded_masks(of_image, options.mask)):
                encoded[row, column] = orjson.dumps(mask)
        tensors.append(OutputTensor("masks", "BYTES", encoded))
    points = [one.keypoints for one in found if one.keypoints is not None]
    if points:
        tensors.append(OutputTensor("keypoints", "FP32", _padded(points, most, np.float32)))
    rotated = [one.rotated for one in found if one.rotated is not None]
    if rotated:
        tensors.append(OutputTensor("rotated", "FP32", _padded(rotated, most, np.float32)))
    return tensors


@result_tensors.register
def _classes(
    first: Classes, found: Sequence[Classes], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert classes.

    Returns:
        ``scores`` FP32 [n, k], ``class_ids`` INT32 [n, k] and ``class_names`` BYTES [n, k], best
        first. k is `top_k`, or the number of classes that there are.
    """
    return _scored_classes(found, max(map(len, found)), words)


def _scored_classes(
    found: Sequence[Detections | Classes], most: int, words: Vocabulary
) -> list[OutputTensor]:
    names = np.full((len(found), most), b"", object)
    for row, one in enumerate(found):
        for column, class_id in enumerate(one.class_ids.tolist()):
            names[row, column] = class_name(words.labels, class_id).encode()
    ids = _padded([one.class_ids for one in found], most, np.int32)
    return [
        OutputTensor("scores", "FP32", _padded([one.scores for one in found], most, np.float32)),
        OutputTensor("class_ids", "INT32", ids),
        OutputTensor("class_names", "BYTES", names),
    ]


def _padded(arrays: Sequence[Array], length: int, dtype: DTypeLike) -> Array:
    padded = np.zeros((len(arrays), length, *arrays[0].shape[1:]), dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


@result_tensors.register
def _class_map(
    first: ClassMap, found: Sequence[ClassMap], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert classes: `class_map` UINT16 [n, h, w], 65535 where the request leaves a class out.

    Of any map, h and w are those of the largest image, and what lies beyond an image is zero;
    `sizes` INT32 [n, 2] has the height and width of each.
    """
    return _map("class_map", "UINT16", [one.pixels() for one in found], np.uint16)


@result_tensors.register
def _foreground(
    first: SoftMask, found: Sequence[SoftMask], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert a foreground: `saliency` FP32 [n, h, w], 0 to 1, and `sizes`."""
    return _map("saliency", "FP32", [one.pixels() for one in found], np.float32)


@result_tensors.register
def _depth(
    first: DepthMap, found: Sequence[DepthMap], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert depths: `depth` FP32 [n, h, w], and `sizes`."""
    return _map("depth", "FP32", [one.pixels() for one in found], np.float32)


def _map(name: str, datatype: str, maps: Sequence[Array], dtype: DTypeLike) -> list[OutputTensor]:
    sizes = np.array([each.shape for each in maps], np.int32)
    padded = np.zeros((len(maps), *sizes.max(axis=0)), dtype)
    for row, each in zip(padded, maps, strict=True):
        row[: each.shape[0], : each.shape[1]] = each
    return [OutputTensor(name, datatype, padded), OutputTensor("sizes", "INT32", sizes)]
