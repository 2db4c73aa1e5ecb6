"""Prepares images that are letterboxed elsewhere, such as on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """Upright RGB pixels, uint8 [h, w, 3] of any strides, and the map from them to a row."""

    pixels: NDArray[np.uint8]
    map: LetterboxMap


class Placer:
    """Computes positions of images, and shrinks images of more than `most_bytes`. Thread-safe.

    A row's own pixels, height x width x 3, must not be more.
    """

    def __init__(self, spec: PreprocessSpec, most_bytes: int) -> None:
        self._spec = spec
        self._most_bytes = most_bytes
        self._letterbox = Preprocessor(spec.bare)

    def __call__(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Place an image: uint8 [h, w, 3], RGB, upright; kept, unless it is too large.

        Returns the image to letterbox, or the finished pixels of its row in its place; and the map
        from `pixels` to the row.
        """
        height, width = pixels.shape[:2]
        box = fit(self._spec, width, height)
        if pixels.nbytes <= self._most_bytes:
            return PlacedImage(pixels, box), box
        height, width = self._spec.height, self._spec.width
        row = np.empty((height, width, 3), np.uint8)
        self._letterbox(pixels, row)
        as_it_is = LetterboxMap(width, height, width, height, width, height, 0, 0)
        return PlacedImage(row, as_it_is), box
