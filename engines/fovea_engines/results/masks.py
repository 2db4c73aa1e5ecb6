"""Defines masks of objects. They stay small until their pixels are requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap


class Bitmap(NamedTuple):
    """The pixels of a mask in the part of the image that contains the object.

    `left` and `top` are the position of this part in the image, in pixels. `pixels` is uint8
    [height, width], 1 on the object and 0 elsewhere.
    """

    left: int
    top: int
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The masks of n objects in one image.

    Models compute masks in a coarse grid. This class keeps the grid and its position in the image,
    and resizes once, directly to the pixels of the image.

    Attributes:
        windows: a grid of values, float32 [h, w], for each object. Values above 0 are on the
            object.
        places: float64 [n, 4], corners x1 y1 x2 y2 of each grid in pixels of the image. A grid may
            extend beyond the image.
        bounds: float64 [n, 4], corners x1 y1 x2 y2 of each object's bounds in pixels of the image.
            Pixels outside the bounds do not belong to the object.
        size: (height, width) of the image in pixels.
    """

    windows: tuple[NDArray[np.float32], ...]
    places: NDArray[np.float64]
    bounds: NDArray[np.float64]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.windows)

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the masks for the upright image."""
        places, bounds = (
            back.points_to_source(corners.reshape(-1, 2)).reshape(-1, 4).astype(np.float64)
            for corners in (self.places, self.bounds)
        )
        size = back.source_height, back.source_width
        return replace(self, places=places, bounds=bounds, size=size)

    def take(self, chosen: NDArray[np.intp]) -> Self:
        """Return the masks with these indices."""
        windows = tuple(self.windows[index] for index in chosen.tolist())
        return replace(
            self, windows=windows, places=self.places[chosen], bounds=self.bounds[chosen]
        )

    def bitmaps(self) -> Iterator[Bitmap]:
        """Yield the pixels of each mask within its bounds."""
        for index in range(len(self)):
            yield self._resize(index)

    def bitmap(self, index: int) -> NDArray[np.uint8]:
        """Return one mask for the whole image, uint8 [height, width], 1 on the object."""
        left, top, part = self._resize(index)
        pixels = np.zeros(self.size, np.uint8)
        pixels[top : top + part.shape[0], left : left + part.shape[1]] = part
        return pixels

    def _resize(self, index: int) -> Bitmap:
        """Return the pixels of one mask.

        The grid is interpolated between the centres of its cells, at the centres of the pixels.
        """
        window, (x1, y1, x2, y2) = self.windows[index], self.places[index].tolist()
        height, width = self.size
        # Crop as YOLACT and YOLO do: a pixel belongs to the bounds if its top left corner is
        # inside.
        edges = np.clip(np.ceil(self.bounds[index]), 0, [width, height] * 2)
        left, top, right, bottom = edges.astype(int).tolist()
        if left >= right or top >= bottom or not window.size:
            return Bitmap(0, 0, np.zeros((0, 0), np.uint8))
        across, down = window.shape[1] / (x2 - x1), window.shape[0] / (y2 - y1)
        to_window = np.array(
            [
                [across, 0, (left + 0.5 - x1) * across - 0.5],
                [0, down, (top + 0.5 - y1) * down - 0.5],
            ]
        )
        values = cv2.warpAffine(
            window,
            to_window,
            (right - left, bottom - top),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return Bitmap(left, top, (values > 0).view(np.uint8))


def join_masks(parts: Sequence[Masks]) -> Masks:
    """Concatenate the masks of several parts of one image."""
    return Masks(
        tuple(window for part in parts for window in part.windows),
        np.concatenate([part.places for part in parts]),
        np.concatenate([part.bounds for part in parts]),
        parts[0].size,
    )


def whole_masks(values: Array, size: tuple[int, int]) -> Masks:
    """Return masks from maps [n, h, w].

    Each map covers the whole input, which has (height, width) pixels. Values above 0 are on the
    object.
    """
    edges = np.array([[0, 0, size[1], size[0]]], np.float64).repeat(len(values), axis=0)
    return Masks(tuple(values.astype(np.float32)), edges, edges, size)
