"""Resizes maps from a model's input to the pixels of an image."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap

# Tolerance in cells: a quotient may round to slightly below a whole number.
_ROUNDING = 1e-6


class _Span(NamedTuple):
    """The cells of a map that an image covers along one axis, and the image's pixels there.

    Attributes:
        first: position of the image's edge in the map, in cells.
        cells: length of the image in the map, in cells.
        pixels: length of the image, in pixels.
    """

    first: float
    cells: float
    pixels: int


def smooth(
    values: NDArray[np.float32], back: LetterboxMap, *, corners: bool = False
) -> NDArray[np.float32]:
    """Interpolate a map over the whole input, float32 [h, w], at the pixels of the image.

    Pixels that a centre crop has cut off repeat the edge of the map.

    Args:
        values: the map.
        back: map between the image and the model's input.
        corners: the centres of the outermost cells and pixels coincide (`align_corners`), instead
            of their outer edges.

    Returns:
        float32 [height, width] of the image.
    """
    down, across = (_matrix_row(span, corners) for span in _spans(values, back))
    found = cv2.warpAffine(
        values,
        np.array([[across[0], 0, across[1]], [0, *down]]),
        (back.source_width, back.source_height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return np.asarray(found, np.float32)


def _matrix_row(span: _Span, corners: bool) -> tuple[float, float]:
    """Return the factor and the offset that convert an index of pixels to an index of cells."""
    if corners:
        return (span.cells - 1) / max(span.pixels - 1, 1), span.first
    step = span.cells / span.pixels
    return step, span.first + (step - 1) / 2


def nearest(values: Array, back: LetterboxMap) -> Array:
    """Return the cell of a map [h, w] that contains the top left corner of each pixel.

    This is the rule of "nearest" in OpenCV and torch.
    """
    rows, columns = (
        np.clip(
            np.floor(span.first + np.arange(span.pixels) * span.cells / span.pixels + _ROUNDING),
            0,
            length - 1,
        ).astype(np.intp)
        for span, length in zip(_spans(values, back), values.shape, strict=True)
    )
    found: Array = values[rows][:, columns]
    return found


def _spans(values: Array, back: LetterboxMap) -> tuple[_Span, _Span]:
    down, across = values.shape[0] / back.input_height, values.shape[1] / back.input_width
    return (
        _Span(back.offset_y * down, back.scaled_height * down, back.source_height),
        _Span(back.offset_x * across, back.scaled_width * across, back.source_width),
    )
