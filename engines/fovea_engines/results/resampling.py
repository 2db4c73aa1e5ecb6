"""Resizes maps from a model's input to the pixels of an image."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap

# Tolerance in cells of the map. Because of rounding, a quotient may be slightly smaller than the
# exact whole number.
_ROUNDING = 1e-6


class _Span(NamedTuple):
    """The position of an image in a map along one axis.

    Attributes:
        first: position of the image's left or top edge in the map, in cells.
        cells: length of the image in the map, in cells.
        pixels: length of the image in pixels.
    """

    first: float
    cells: float
    pixels: int


def smooth(
    values: NDArray[np.float32], back: LetterboxMap, *, corners: bool = False
) -> NDArray[np.float32]:
    """Interpolate the values of a grid at the pixels of the image.

    Pixels that a centre crop has cut off get the values at the edge of the grid.

    Args:
        values: float32 [h, w]. The grid covers the whole input of the model.
        back: map between the image and the model's input.
        corners: if True, the centres of the outermost cells coincide with the centres of the
            outermost pixels (`align_corners`). If False, their outer edges coincide.

    Returns:
        float32 [height, width] with the size of the image.
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
    """Return the factor and the offset that convert a pixel index to a cell index."""
    if corners:
        return (span.cells - 1) / max(span.pixels - 1, 1), span.first
    step = span.cells / span.pixels
    return step, span.first + (step - 1) / 2


def nearest(values: Array, back: LetterboxMap) -> Array:
    """Return for each pixel the value of the cell that contains the pixel's top left corner.

    The interpolation "nearest" of OpenCV and torch uses the same rule. `values` is [h, w].
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
