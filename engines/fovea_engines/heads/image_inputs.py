"""Computes what networks take in place of a colour image, or beside it.

In place of it they take its grey. Beside it they take its size, a mask, or it enlarged: the size is
that of the model's own input, so boxes come in its pixels, as from every other head. Rows are of
RGB where a network takes grey, and of 0 to 255 where it takes the image enlarged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fovea_engines.heads.signature import image_sides
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import UnsupportedModel

GREY: Final = np.array([0.299, 0.587, 0.114], np.float32)
"""Shares of R, G and B, as OpenCV and Pillow have them."""

SIZE_INPUTS: Mapping[str, Callable[[int, int], ArrayLike]] = {
    "orig_target_sizes": lambda height, width: (width, height),  # RT-DETR, D-FINE, DEIM
    "im_shape": lambda height, width: (height, width),  # PaddleDetection
    "image_shape": lambda height, width: (height, width),  # YOLOv3 of the ONNX model zoo
    "scale_factor": lambda height, width: (1, 1),  # PaddleDetection: y and x
    "pixel_mask": lambda height, width: np.ones((height, width)),  # DETR of transformers
}
"""Values for one image by the name of the input, which has no other meaning elsewhere."""

_DTYPES = ("int64", "int32", "float32")
_WHITE = 255


def is_grey(image: TensorSpec) -> bool:
    """Return whether an input takes images of one channel, [batch, 1, h, w]."""
    return len(image.shape) == 4 and image.shape[1] == 1 and image.dtype.startswith("float")


def origin_of(image: TensorSpec, origin: str) -> str:
    """Return the origin of a model's preprocessing, for people, with what it takes of RGB."""
    return f"{origin}; the network takes the grey of that RGB" if is_grey(image) else origin


def factor_of(image: TensorSpec, other: TensorSpec) -> int | None:
    """Return how many times as large as a batch of images, [n, c, h, w], another is, at least 2."""
    if len(image.shape) != 4 or len(other.shape) != 4 or image.dtype != other.dtype:
        return None
    (channels, *small), (others, *large) = image.shape[1:], other.shape[1:]
    factor = large[0] // small[0] if min(small) > 0 else 1
    same = channels == others and large == [side * factor for side in small]
    return factor if same and factor > 1 else None


def grey(rows: Array) -> Array:
    """Return the grey levels, [n, 1, h, w], of RGB rows, [n, 3, h, w]."""
    return np.tensordot(GREY, rows, (0, 1))[:, None].astype(rows.dtype)


def make_enlarging_matrix(length: int, factor: int) -> NDArray[np.float32]:
    """Return the matrix, [length * factor, length], that enlarges columns by bicubic interpolation.

    It is OpenCV's and OpenVINO's, whose coefficient is -.75.
    """
    sides = length, length * factor
    matrix = cv2.resize(np.eye(length, dtype=np.float32), sides, interpolation=cv2.INTER_CUBIC)
    return np.asarray(matrix, np.float32)


def enlarge(rows: Array, factor: int) -> Array:
    """Return rows of 0 to 255, [n, c, h, w], enlarged to whole levels: [n, c, h * f, w * f].

    That is what OpenCV makes of an image of 8 bits, and what such networks were trained on.
    """
    height, width = rows.shape[2] * factor, rows.shape[3] * factor
    planes = [
        cv2.resize(plane.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
        for plane in rows.reshape(-1, *rows.shape[2:])
    ]
    levels = np.rint(planes).clip(0, _WHITE).astype(rows.dtype)
    return levels.reshape(*rows.shape[:2], height, width)


def image_of(inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the one input that must be fed; UnsupportedModel if it is not exactly one."""
    images = _images(inputs)
    if len(images) != 1:
        names = ", ".join(repr(spec.name) for spec in images) or "none"
        known = ", ".join(SIZE_INPUTS)
        raise UnsupportedModel(
            f"{len(images)} inputs must be fed ({names}), and a build feeds one image (and fills "
            f"in {known}, or the image enlarged): export the model with one input, name the "
            "tokenizer.json of one that takes texts as well with --tokenizer, or serve the file "
            "as it is, as NAME/1/model.onnx in a repository"
        )
    return images[0]


def list_other_inputs(inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the names of the inputs that are filled in."""
    fed = _images(inputs)
    return tuple(spec.name for spec in inputs if spec not in fed)


def _images(inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs that are not filled in."""
    images = [spec for spec in inputs if _row(spec, 1, 1) is None]
    return [spec for spec in images if all(factor_of(other, spec) is None for other in images)]


def source_feeds(inputs: Sequence[TensorSpec], rows: Array) -> dict[str, Array]:
    """Return all arrays that a model takes, of preprocessed images [n, ...].

    A model without a batch dimension gets the image without.
    """
    image = image_of(inputs)
    if is_grey(image):
        rows = grey(rows)
    feeds = {image.name: rows[0] if len(image.shape) == rows.ndim - 1 else rows}
    for spec in inputs:
        if (factor := factor_of(image, spec)) is not None:
            feeds[spec.name] = enlarge(rows, factor)
        elif spec is not image:
            height, width = image_sides(TensorSpec(image.name, image.dtype, rows.shape))
            feeds[spec.name] = np.repeat(fill_input(spec, height, width), len(rows), axis=0)
    return feeds


def fill_input(spec: TensorSpec, height: int, width: int) -> Array:
    """Return the value of an input for one image, [1, ...]; UnsupportedModel if it does not fit."""
    value = _row(spec, height, width)
    assert value is not None, "all inputs but the image are filled in"
    if any(d not in (-1, n) for d, n in zip(spec.shape[1:], value.shape[1:], strict=True)):
        raise UnsupportedModel(
            f"input {spec.name!r} of shape {list(spec.shape)} is not for an image of "
            f"{height}x{width}: build with another --size, or export the model without this input"
        )
    return value


def _row(spec: TensorSpec, height: int, width: int) -> Array | None:
    """Return the value for one image, [1, ...]; None for an input that is not filled in."""
    if spec.name not in SIZE_INPUTS or spec.dtype not in _DTYPES:
        return None
    row = np.array([SIZE_INPUTS[spec.name](height, width)], spec.dtype)
    return row if row.ndim == len(spec.shape) else None
