"""Converts a decoded image to one row of a model's input batch, or prepares the image for a GPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, prod
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.spec import PreprocessSpec, Resample

# Switch off OpenCV's own threads. The server already preprocesses one image per thread, and the
# engine uses the same CPU cores, so more threads would only slow each other down.
cv2.setNumThreads(1)


# Largest number of elements of a batch row: one gigabyte of float32.
_MAX_ELEMENTS = 1 << 28
_CV2: Mapping[Resample, int] = {
    "linear": cv2.INTER_LINEAR,
    "linear-float": cv2.INTER_LINEAR,
    "area": cv2.INTER_AREA,
}
_PILLOW: Mapping[Resample, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# Radius of the Lanczos filter, the largest of Pillow's filters. The unit is a pixel of the original
# or the resized image, whichever has fewer pixels.
_REACH = 3


# Buffers of each thread. All preprocessors of a thread share them: a model with several input sizes
# has one preprocessor for each size, and separate buffers would need much memory.
_SCRATCH = threading.local()


class Preprocessor:
    """Converts images to rows of an input batch. It is thread-safe."""

    def __init__(self, spec: PreprocessSpec) -> None:
        """Compute the tables that convert pixel levels to input values.

        Raises:
            InvalidModel: a row of the input would have more than a gigabyte.
        """
        self.spec = spec
        if prod(spec.row_shape) > _MAX_ELEMENTS:
            raise InvalidModel(
                f"the model's input of {spec.width} x {spec.height} pixels needs more than a "
                "gigabyte per image: export the model with a smaller input"
            )
        self._tables = _tables(spec)
        # Cache the maps, because a camera or video sends images of only a few sizes.
        self._fit = lru_cache(maxsize=64)(partial(fit, spec))

    def __call__(self, pixels: NDArray[np.uint8], out: NDArray[Any]) -> LetterboxMap:
        """Write an image into a row of a batch, and return the map from the image to the row.

        Args:
            pixels: uint8 [h, w, 3], RGB, upright, with any strides.
            out: row to write, with the `row_shape` and dtype of the spec. If the row is not
                contiguous, writing needs an extra copy.

        Raises:
            ValueError: an array has another shape or dtype, or `out` is read-only.
        """
        spec = self.spec
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(
                f"pixels have type {pixels.dtype} and shape {pixels.shape}; they must be uint8 "
                "[height, width, 3]"
            )
        if out.dtype != spec.dtype or out.shape != spec.row_shape or not out.flags.writeable:
            raise ValueError(
                f"out is {out.dtype} {out.shape}, writeable: {out.flags.writeable}; it must be a "
                f"writeable array of {spec.dtype} {spec.row_shape}"
            )
        box = self._fit(pixels.shape[1], pixels.shape[0])
        row = out if out.flags.carray else np.empty(out.shape, out.dtype)
        image, planes = self._buffers(box)
        if spec.resample == "linear-float" and spec.fit != "center-crop" and not spec.whole:
            self._write_floats(pixels, box, row)
        elif spec.layout == "NHWC":
            self._write_interleaved(pixels, box, image, row)
        else:
            self._write_planes(pixels, box, image, planes, row)
        if row is not out:
            out[...] = row
        return box

    def row(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[Any], LetterboxMap]:
        """Return an image as a new batch [1, ...], and the map from the image to the batch row."""
        row = np.empty((1, *self.spec.row_shape), self.spec.dtype)
        return row, self(pixels, row[0])

    def _write_planes(
        self,
        pixels: NDArray[np.uint8],
        box: LetterboxMap,
        image: NDArray[np.uint8],
        planes: NDArray[np.uint8],
        row: NDArray[Any],
    ) -> None:
        for plane, table in zip(row, self._tables, strict=True):
            _pad(plane, box, table[self.spec.pad])
        regions = row[:, *box.visible]
        if pixels.shape == image.shape == (box.scaled_height, box.scaled_width, 3):
            image = pixels
        else:
            _resize(pixels, box, image, self.spec.resample)
        whole = regions if self.spec.dtype == "uint8" else planes
        cv2.split(image, list(whole if self.spec.channels == "RGB" else whole[::-1]))
        if whole is planes:
            for plane, table, region in zip(planes, self._tables, regions, strict=True):
                _look_up(plane, table, region)

    def _write_interleaved(
        self,
        pixels: NDArray[np.uint8],
        box: LetterboxMap,
        image: NDArray[np.uint8],
        row: NDArray[Any],
    ) -> None:
        grey = self._tables[:, self.spec.pad]
        # Grey padding with one value is many times faster than with three different values.
        _pad(row, box, grey[0] if (grey == grey[0]).all() else grey)
        region = row[box.visible]
        whole = region if self.spec.dtype == "uint8" else image
        _resize(pixels, box, whole, self.spec.resample)
        if self.spec.channels == "BGR":
            cv2.cvtColor(whole, cv2.COLOR_RGB2BGR, dst=whole)
        if whole is image:
            _look_up(image, np.ascontiguousarray(self._tables.T)[None], region)

    def _write_floats(
        self, pixels: NDArray[np.uint8], box: LetterboxMap, row: NDArray[Any]
    ) -> None:
        spec = self.spec
        planes = row if spec.layout == "NCHW" else row.transpose(2, 0, 1)
        order = (0, 1, 2) if spec.channels == "RGB" else (2, 1, 0)
        for n, (plane, channel) in enumerate(zip(planes, order, strict=True)):
            _pad(plane, box, self._tables[n, spec.pad])
            # Convert one channel at a time. Converting all channels to float32 at once would need
            # four times the memory of the image.
            levels = cv2.resize(
                pixels[..., channel].astype(np.float32),
                (box.scaled_width, box.scaled_height),
                interpolation=cv2.INTER_LINEAR,
            )
            plane[box.visible] = (levels * spec.scale - spec.mean[n]) / spec.std[n]

    def _buffers(self, box: LetterboxMap) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return this thread's buffers for the resized image [h, w, 3] and its planes [3, h, w]."""
        rows, columns = box.visible
        height, width = rows.stop - rows.start, columns.stop - columns.start
        size = height * width * 3
        room: NDArray[np.uint8] | None = getattr(_SCRATCH, "room", None)
        if room is None or room.shape[1] < size:
            room = _SCRATCH.room = np.empty((2, size), np.uint8)
        return room[0, :size].reshape(height, width, 3), room[1, :size].reshape(3, height, width)


def _tables(spec: PreprocessSpec) -> NDArray[Any]:
    """Return the input value for each channel and level: [3, 256] in the spec's dtype."""
    values = np.arange(256.0)
    if spec.whole:
        return np.tile(values.astype(spec.dtype), (3, 1))
    mean, std = np.array(spec.mean)[:, None], np.array(spec.std)[:, None]
    return np.asarray((values * spec.scale - mean) / std, spec.dtype)


def _resize(
    pixels: NDArray[np.uint8], box: LetterboxMap, target: NDArray[np.uint8], resample: Resample
) -> None:
    """Write the visible part of an image at its size in the input."""
    height, width = target.shape[:2]
    whole = (box.scaled_width, box.scaled_height) == (width, height)
    if whole and resample in _CV2:
        cv2.resize(pixels, (width, height), dst=target, interpolation=_CV2[resample])
        return
    # The rest is for crops and antialiased resizes, which use Pillow: torchvision's classifiers are
    # trained with its filters. Pillow resamples only the visible part of the image. Resampling a
    # whole, very long image before the crop could need an enormous amount of memory.
    left, top = max(-box.offset_x, 0) / box.scale_x, max(-box.offset_y, 0) / box.scale_y
    # `min` is needed because of rounding: the sum may be slightly larger than the image's side, and
    # Pillow rejects such a box.
    right = min(left + width / box.scale_x, box.source_width)
    bottom = min(top + height / box.scale_y, box.source_height)
    x = y = 0
    if box.source_height > box.source_width:
        # For a crop of a tall image, Pillow would resample the columns before the rows, and the
        # rounding would differ from a resize of the whole image. To avoid this, pass only the crop
        # and the pixels around it that the filter uses.
        wide, high = (_REACH * max(1 / scale, 1) + 1 for scale in (box.scale_x, box.scale_y))
        x, y = max(int(left - wide), 0), max(int(top - high), 0)
        pixels = pixels[y : ceil(bottom + high), x : ceil(right + wide)]
    part = (left - x, top - y, right - x, bottom - y)
    kernel = _PILLOW.get(resample, Image.Resampling.BILINEAR)
    resized = Image.fromarray(pixels).resize((width, height), kernel, box=part)
    target[...] = np.asarray(resized)


def _pad(plane: NDArray[Any], box: LetterboxMap, value: Any) -> None:
    rows, columns = box.visible
    if rows.start or rows.stop < box.input_height:
        plane[: rows.start] = value
        plane[rows.stop :] = value
    if columns.start or columns.stop < box.input_width:
        plane[rows, : columns.start] = value
        plane[rows, columns.stop :] = value


def _look_up(levels: NDArray[np.uint8], table: NDArray[Any], target: NDArray[Any]) -> None:
    # View float16 as int16, because some versions of OpenCV do not support float16. The result is
    # the same, because a table lookup only copies elements of this size.
    if target.dtype == np.float16:
        table, target = table.view(np.int16), target.view(np.int16)
    cv2.LUT(levels, table, dst=target)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An upright image, uint8 RGB [h, w, 3] with any strides, and its map to an input row."""

    pixels: NDArray[np.uint8]
    map: LetterboxMap


class Placer:
    """Computes the positions of images in an input row, and shrinks images of over `most_bytes`.

    The class is thread-safe. The pixels of an input row (height x width x 3 bytes) must not exceed
    `most_bytes`.
    """

    def __init__(self, spec: PreprocessSpec, most_bytes: int) -> None:
        self._spec = spec
        self._most_bytes = most_bytes
        self._letterbox = Preprocessor(spec.bare)

    def __call__(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image for its place in the input batch.

        Args:
            pixels: uint8 [h, w, 3], RGB, upright.

        Returns:
            The image, and the map from `pixels` to its place in the batch. The GPU letterboxes the
            image later. If `pixels` is larger than `most_bytes`, this method has letterboxed it
            already.
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
