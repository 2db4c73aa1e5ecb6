"""Computes the position of an image in a model's input, and maps coordinates back to the image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.spec import PreprocessSpec

Floats = NDArray[np.floating[Any]]

# Smallest side of a variable input, as a fraction of the largest input's side. A smaller input
# would yield fewer boxes than a model with top-k selection needs.
_MIN = 0.25
_ROUNDED = 1e-6


@dataclass(frozen=True)
class LetterboxMap:
    """The map ``input = source * scale + offset`` from an image to a model's input.

    Coordinates are continuous: (0, 0) is the outer corner of the first pixel. `cv2.resize` uses the
    same map. The scales are computed from the rounded sizes. All sizes are in pixels.

    Attributes:
        source_width: width of the image.
        source_height: height of the image.
        input_width: width of the input.
        input_height: height of the input.
        scaled_width: width of the whole image in the input; larger than `input_width` if the centre
            crop cuts it off.
        scaled_height: height of the whole image in the input.
        offset_x: column of the image's left edge in the input; negative if the crop cuts it off.
        offset_y: row of the image's top edge in the input; negative if the crop cuts it off.
        unscale: scale for mapping boxes back to the image. None means `scale_x` and `scale_y`.
    """

    source_width: int
    source_height: int
    input_width: int
    input_height: int
    scaled_width: int
    scaled_height: int
    offset_x: int
    offset_y: int
    unscale: float | None = None

    @property
    def scale_x(self) -> float:
        """Return the width of an image pixel in input pixels."""
        return self.scaled_width / self.source_width

    @property
    def scale_y(self) -> float:
        """Return the height of an image pixel in input pixels."""
        return self.scaled_height / self.source_height

    @cached_property
    def visible(self) -> tuple[slice, slice]:
        """Return the rows and columns of the input that show the image. All others are padding."""
        return (
            slice(
                max(self.offset_y, 0), min(self.offset_y + self.scaled_height, self.input_height)
            ),
            slice(max(self.offset_x, 0), min(self.offset_x + self.scaled_width, self.input_width)),
        )

    def points_to_source(self, points: Floats) -> NDArray[np.float32]:
        """Map points [..., 2], x y, from the input to the image, without clipping."""
        factor, shift, _ = self._to_source
        return (points * factor - shift).astype(np.float32)

    def boxes_to_source(self, boxes: Floats) -> NDArray[np.float32]:
        """Map boxes [n, 4], x1 y1 x2 y2, from the input to the image, and clip them to it."""
        points = self.points_to_source(boxes.reshape(-1, 2))
        # np.maximum and np.minimum are faster than np.clip for small arrays.
        np.maximum(points, 0, out=points)
        return np.minimum(points, self._to_source[2], out=points).reshape(-1, 4)

    @cached_property
    def _to_source(self) -> tuple[Floats, Floats, Floats]:
        scale = np.array((self.unscale or self.scale_x, self.unscale or self.scale_y))
        offset = np.array((self.offset_x, self.offset_y), np.float64)
        limit = np.array((self.source_width, self.source_height), np.float32)
        return 1 / scale, offset / scale, limit


def fit(spec: PreprocessSpec, width: int, height: int) -> LetterboxMap:
    """Return the map from an image of `width` x `height` pixels to the input of `spec`."""
    unscale = None
    match spec.fit:
        case "letterbox":
            ratio = _ratio(spec, width, height)
            scaled, offset = _letterbox(spec, width * ratio, height * ratio)
            unscale = ratio if spec.unscale == "ratio" else None
        case "stretch":
            scaled, offset = (spec.width, spec.height), (0, 0)
        case "center-crop":
            scaled, offset = _center_crop(spec, width, height)
    return LetterboxMap(width, height, spec.width, spec.height, *scaled, *offset, unscale)


def fit_spec(spec: PreprocessSpec, width: int, height: int) -> PreprocessSpec:
    """Return the preprocessing with the smallest allowed input that holds an image.

    `spec.at` fixes the input to the size that `least_size` returns.
    """
    return spec.at(least_size(spec, width, height)) if spec.step else spec


def least_size(spec: PreprocessSpec, width: int, height: int) -> tuple[int, int]:
    """Return (height, width) of the smallest input of `spec` that holds an image.

    Each side is at least a quarter of the largest input's side.
    """
    ratio = _ratio(spec, width, height)
    sides = (spec.height, height * ratio), (spec.width, width * ratio)
    return _multiple(spec, *sides[0]), _multiple(spec, *sides[1])


def _multiple(spec: PreprocessSpec, most: int, length: float) -> int:
    # Subtract a small tolerance: the rounded `length` may be slightly larger than a whole number of
    # steps, and `ceil` would then add a step.
    steps = ceil(max(length - _ROUNDED, most * _MIN) / spec.step)
    return min(steps * spec.step, most)


def _ratio(spec: PreprocessSpec, width: int, height: int) -> float:
    ratio = min(spec.width / width, spec.height / height)
    return ratio if spec.max_scale is None else min(ratio, spec.max_scale)


def _letterbox(
    spec: PreprocessSpec, width: float, height: float
) -> tuple[tuple[int, int], tuple[int, int]]:
    # YOLOX's preproc() truncates with int(w * r), and YOLOv5's letterbox() rounds.
    down = spec.rounding == "down" or (spec.rounding is None and spec.anchor == "top-left")
    whole = int if down else round
    scaled = max(1, whole(width)), max(1, whole(height))
    if spec.anchor == "top-left":
        return scaled, (0, 0)
    # If the padding is odd, the right or bottom side gets the extra pixel. YOLOv5 does this with
    # round(d - 0.1).
    left, top = (spec.width - scaled[0]) / 2, (spec.height - scaled[1]) / 2
    return scaled, (round(left - 0.1), round(top - 0.1))


def _center_crop(
    spec: PreprocessSpec, width: int, height: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    # This follows torchvision's Resize(size) and CenterCrop. The short side becomes `size`. The
    # long side becomes the int() of its scaled length. The crop starts at round((scaled - crop) /
    # 2).
    wide, high = round(spec.width * spec.crop_ratio), round(spec.height * spec.crop_ratio)
    if wide * height >= high * width:
        scaled = wide, max(high, wide * height // width)
    else:
        scaled = max(wide, high * width // height), high
    left, top = (scaled[0] - spec.width) / 2, (scaled[1] - spec.height) / 2
    return scaled, (-round(left), -round(top))
