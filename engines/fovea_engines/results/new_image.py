"""Defines the result of image-to-image models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.map_encoding import (
    check_there,
    picture_png,
    read_levels,
    to_base64,
)
from fovea_engines.results.mask_encoding import read_size
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.spec import Channels

Pixels = NDArray[np.uint8]
MediaType = Literal["image/jpeg", "image/png", "image/webp"]
"""Media types of the image files that a response may contain."""

_WHITE = 255


@dataclass(frozen=True, slots=True, eq=False)
class NewImage(TaskResult):
    """An image that a model computed from an input image.

    Attributes:
        values: [h, w, c] with 1 or 3 channels. The dtype is float32 or uint8. In float32, all
            values are finite, 0 is black and 1 is white, and values may lie slightly outside of
            this range. uint8 levels come from an image that was joined from tiles or read from a
            response. If the response leaves the image out, c is 0.
        luma: True if the values are only the luma (brightness) of a colour image.
    """

    tasks: ClassVar[tuple[str, ...]] = ("image",)
    field: ClassVar[str] = "picture"
    compared: ClassVar[str] = "pictures"
    columns: ClassVar[tuple[str, ...]] = ("width", "height")

    values: NDArray[np.float32] | Pixels
    luma: bool = False

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the size of the image, and its PNG file."""
        height, width = self.values.shape[:2]
        answer: dict[str, Any] = {"width": width, "height": height}
        if options.mask != "none":
            answer["png"] = to_base64(picture_png(self.levels))
        return {self.field: answer}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the levels of a response's image. `TaskResult.from_json` lists the errors."""
        given = answer[cls.field]
        height, width = read_size(given)
        if "png" not in given:
            return cls(np.zeros((height, width, 0), np.uint8))
        levels = read_levels(given["png"])
        if levels.shape[:2] != (height, width) or levels.dtype != np.uint8:
            raise ValueError(f"the file is not an 8-bit image of {width}x{height} pixels")
        return cls(levels.reshape(height, width, -1))

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the output images of n images to tensors.

        Returns:
            ``picture`` float32 [n, h, w, c], 0 to 1 or slightly outside. h and w are the height and
            width of the largest image; pixels beyond a smaller image are 0. ``sizes`` int32 [n, 2],
            height and width of each image.
        """
        sizes = np.array([one.values.shape[:2] for one in found], np.int32)
        channels = found[0].values.shape[2]
        whole = np.zeros((len(found), *sizes.max(axis=0), channels), np.float32)
        for row, one in zip(whole, found, strict=True):
            row[: one.values.shape[0], : one.values.shape[1]] = one.numbers
        return {"picture": whole, "sizes": sizes}

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return [
            TensorSpec("picture", "float32", (-1, -1, -1, -1)),
            TensorSpec("sizes", "int32", (-1, 2)),
        ]

    @property
    def summary(self) -> str:
        """Return the size of the image, as text."""
        height, width = self.values.shape[:2]
        return f"an image of {width} x {height} pixels"

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.values]

    @property
    def levels(self) -> Pixels:
        """Return the levels, uint8 [h, w, c].

        Raises:
            InvalidResult: the response left the image out.
        """
        check_there(self.values)
        if self.values.dtype == np.uint8:
            return self.values.astype(np.uint8, copy=False)
        return (self.values * _WHITE).round().clip(0, _WHITE).astype(np.uint8)

    @property
    def rgb(self) -> Pixels:
        """Return the levels as uint8 [h, w, 3]. The three channels of a grey image are equal."""
        return np.broadcast_to(self.levels, (*self.values.shape[:2], 3))

    @property
    def numbers(self) -> NDArray[np.float32]:
        """Return the values as float32 [h, w, c]; uint8 levels are divided by 255."""
        values = self.values.astype(np.float32, copy=False)
        return values / np.float32(_WHITE) if self.values.dtype == np.uint8 else values

    def in_rgb(self, channels: Channels) -> Self:
        """Return the image in RGB, given the order of its channels."""
        return replace(self, values=self.values[..., ::-1]) if channels == "BGR" else self

    def add_colours(self, pixels: Pixels) -> Self:
        """Add the colours of the input image to a luma image; return other images unchanged.

        The colours are the channels Cr and Cb of ITU-R BT.601. They are enlarged by bicubic
        interpolation. Papers on super-resolution of luma do the same (SRCNN, arXiv 1501.00092).

        Args:
            pixels: the input image in RGB, uint8 [h, w, 3].
        """
        if not self.luma:
            return self
        size = self.values.shape[1], self.values.shape[0]
        colours = cv2.cvtColor(pixels, cv2.COLOR_RGB2YCrCb)[..., 1:]
        large = cv2.resize(colours, size, interpolation=cv2.INTER_CUBIC)
        merged = np.concatenate([self.levels, large], axis=2, dtype=np.uint8)
        values = np.asarray(cv2.cvtColor(merged, cv2.COLOR_YCrCb2RGB), np.uint8)
        return replace(self, values=values, luma=False)

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the part of the output that shows the image, without the padding.

        If preprocessing resized the image, the output is resized to the size of the image.
        """
        factor = self.values.shape[0] // back.input_height
        rows, columns = (slice(s.start * factor, s.stop * factor) for s in back.visible)
        part = self.values[rows, columns]
        size = back.source_width, back.source_height
        if (back.scaled_width, back.scaled_height) == size:
            return replace(self, values=part)
        found = cv2.resize(part.astype(np.float32), size, interpolation=cv2.INTER_CUBIC)
        resized = np.asarray(found, np.float32)
        # `reshape` restores the last dimension, which OpenCV drops if there is one channel.
        return replace(self, values=resized.reshape(*size[::-1], -1))

    def similarity(self, other: TaskResult) -> float | None:
        """Return the agreement with another image, 0 to 1.

        The agreement is 1 minus the root mean square difference, where white is 1 and black is 0.
        An agreement of .99 is a PSNR of 40 dB, and .968 is a PSNR of 30 dB.
        """
        if not isinstance(other, NewImage):
            return None
        off = np.square(self.numbers.clip(0, 1) - other.numbers.clip(0, 1), dtype=np.float64)
        # If the agreement is NaN, return 0: `max(0.0, nan)` returns its first argument.
        return max(0.0, 1 - float(np.sqrt(off.mean())))
