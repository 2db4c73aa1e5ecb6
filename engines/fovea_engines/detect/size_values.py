"""Computes the inputs that networks take beside the image: its size, a mask, or it enlarged.

It is the size of the model's own input, so boxes come in its pixels, as from every other head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fovea_engines.detect.heads.signature import image_sides
from fovea_engines.detect.image_inputs import enlarged, factor_of, grey, is_grey
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import UnsupportedModel

SIZE_INPUTS: Mapping[str, Callable[[int, int], ArrayLike]] = {
    "orig_target_sizes": lambda height, width: (width, height),  # RT-DETR, D-FINE, DEIM
    "im_shape": lambda height, width: (height, width),  # PaddleDetection
    "image_shape": lambda height, width: (height, width),  # YOLOv3 of the ONNX model zoo
    "scale_factor": lambda height, width: (1, 1),  # PaddleDetection: y and x
    "pixel_mask": lambda height, width: np.ones((height, width)),  # DETR of transformers
}
"""Values for one image by the name of the input, which has no other meaning elsewhere."""

_DTYPES = ("int64", "int32", "float32")


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


def beside_image(inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
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
            feeds[spec.name] = enlarged(rows, factor)
        elif spec is not image:
            height, width = image_sides(TensorSpec(image.name, image.dtype, rows.shape))
            feeds[spec.name] = np.repeat(filled(spec, height, width), len(rows), axis=0)
    return feeds


def filled(spec: TensorSpec, height: int, width: int) -> Array:
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
