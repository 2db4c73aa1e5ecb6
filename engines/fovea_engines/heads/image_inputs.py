"""Computes inputs that models take instead of a colour image, or in addition to it.

A model may take a grey image instead of a colour image. In addition to the image, it may take the
size of the image, a mask, or the enlarged image. The size that these functions pass is the size of
the model's input. Therefore boxes are in pixels of the input, as in all other models. The
preprocessed images are RGB even if the model takes grey images. Their values are 0 to 255 if the
model takes the enlarged image.
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
"""Weights of red, green and blue in the grey level, as in OpenCV and Pillow."""

SIZE_INPUTS: Mapping[str, Callable[[int, int], ArrayLike]] = {
    "orig_target_sizes": lambda height, width: (width, height),  # RT-DETR, D-FINE, DEIM
    "im_shape": lambda height, width: (height, width),  # PaddleDetection
    "image_shape": lambda height, width: (height, width),  # YOLOv3 of the ONNX model zoo
    "scale_factor": lambda height, width: (1, 1),  # PaddleDetection: y and x
    "pixel_mask": lambda height, width: np.ones((height, width)),  # DETR of transformers
}
"""Name of an input -> function of height and width that returns its value for one image.

No known model uses one of these names with another meaning.
"""

_DTYPES = ("int64", "int32", "float32")
_WHITE = 255


def is_grey(image: TensorSpec) -> bool:
    """Return whether an input takes images of one channel, [batch, 1, h, w]."""
    return len(image.shape) == 4 and image.shape[1] == 1 and image.dtype.startswith("float")


def origin_of(image: TensorSpec, origin: str) -> str:
    """Return `origin`, the origin of a model's preprocessing, as text.

    If the model takes grey images, add a note.
    """
    return f"{origin}; the model's input is a grey image" if is_grey(image) else origin


def factor_of(image: TensorSpec, other: TensorSpec) -> int | None:
    """Return the factor between the sides of a tensor and the sides of a batch of images.

    The factor is a whole number of at least 2 that holds for height and width. If there is no such
    factor, return None.

    Args:
        image: spec of the images, [n, c, h, w].
        other: spec of the other tensor.
    """
    if len(image.shape) != 4 or len(other.shape) != 4 or image.dtype != other.dtype:
        return None
    (channels, *small), (others, *large) = image.shape[1:], other.shape[1:]
    factor = large[0] // small[0] if min(small) > 0 else 1
    same = channels == others and large == [side * factor for side in small]
    return factor if same and factor > 1 else None


def grey(rows: Array) -> Array:
    """Return the grey levels [n, 1, h, w] of RGB rows [n, 3, h, w]."""
    return np.tensordot(GREY, rows, (0, 1))[:, None].astype(rows.dtype)


def make_enlarging_matrix(length: int, factor: int) -> NDArray[np.float32]:
    """Return the matrix [length * factor, length] that enlarges columns by bicubic interpolation.

    The coefficient is -.75, as in OpenCV and OpenVINO.
    """
    sides = length, length * factor
    matrix = cv2.resize(np.eye(length, dtype=np.float32), sides, interpolation=cv2.INTER_CUBIC)
    return np.asarray(matrix, np.float32)


def enlarge(rows: Array, factor: int) -> Array:
    """Return images with values of 0 to 255, [n, c, h, w], enlarged to [n, c, h * f, w * f].

    The values are rounded to whole levels. The result equals OpenCV's enlargement of an 8-bit
    image. The models that take an enlarged image were trained with OpenCV.
    """
    height, width = rows.shape[2] * factor, rows.shape[3] * factor
    planes = [
        cv2.resize(plane.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
        for plane in rows.reshape(-1, *rows.shape[2:])
    ]
    levels = np.rint(planes).clip(0, _WHITE).astype(rows.dtype)
    return levels.reshape(*rows.shape[:2], height, width)


def image_of(inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the only input that takes preprocessed images.

    Raises:
        UnsupportedModel: no input takes images, or several inputs take images.
    """
    images = _images(inputs)
    if len(images) != 1:
        names = ", ".join(repr(spec.name) for spec in images) or "none"
        known = ", ".join(SIZE_INPUTS)
        raise UnsupportedModel(
            f"{len(images)} inputs need data ({names}), but a build supports only one image input "
            f"(plus {known} and an enlarged image): export the model with one input, give "
            "--tokenizer if it accepts texts, or put the file into a repository as "
            "NAME/1/model.onnx to serve its tensors"
        )
    return images[0]


def list_other_inputs(inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the names of the inputs whose values this module computes."""
    fed = _images(inputs)
    return tuple(spec.name for spec in inputs if spec not in fed)


def _images(inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs whose values this module does not compute."""
    images = [spec for spec in inputs if _row(spec, 1, 1) is None]
    return [spec for spec in images if all(factor_of(other, spec) is None for other in images)]


def source_feeds(inputs: Sequence[TensorSpec], rows: Array) -> dict[str, Array]:
    """Return all arrays that a model takes, by name.

    Args:
        inputs: specs of the model's inputs.
        rows: preprocessed images, [n, ...]. A model without a batch axis gets the only image.
    """
    # Most models have one input. The general search for the image would take 10 us.
    image = inputs[0] if len(inputs) == 1 else image_of(inputs)
    if is_grey(image):
        rows = grey(rows)
    feeds = {image.name: rows[0] if len(image.shape) == rows.ndim - 1 else rows}
    for spec in inputs if len(inputs) > 1 else ():
        if (factor := factor_of(image, spec)) is not None:
            feeds[spec.name] = enlarge(rows, factor)
        elif spec is not image:
            height, width = image_sides(TensorSpec(image.name, image.dtype, rows.shape))
            feeds[spec.name] = np.repeat(fill_input(spec, height, width), len(rows), axis=0)
    return feeds


def fill_input(spec: TensorSpec, height: int, width: int) -> Array:
    """Return the value that this module computes for an input and one image, [1, ...].

    Raises:
        UnsupportedModel: the value does not have the shape of the input.
    """
    value = _row(spec, height, width)
    assert value is not None, "all inputs but the image are filled in"
    if any(d not in (-1, n) for d, n in zip(spec.shape[1:], value.shape[1:], strict=True)):
        raise UnsupportedModel(
            f"input {spec.name!r} of shape {list(spec.shape)} does not fit an image of "
            f"{height}x{width}: build with another --size, or export the model without this input"
        )
    return value


def _row(spec: TensorSpec, height: int, width: int) -> Array | None:
    """Return the value of an input for one image, [1, ...].

    If this module does not compute the value of the input, return None.
    """
    if spec.name not in SIZE_INPUTS or spec.dtype not in _DTYPES:
        return None
    row = np.array([SIZE_INPUTS[spec.name](height, width)], spec.dtype)
    return row if row.ndim == len(spec.shape) else None
