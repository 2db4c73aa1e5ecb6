"""Defines preprocessing from a decoded image to the model's input, as a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

Fit = Literal["letterbox", "stretch", "center-crop"]
Resample = Literal["linear", "linear-float", "antialias", "bicubic", "lanczos", "area"]
Channels = Literal["RGB", "BGR"]
PixelType = Literal["float32", "float16", "uint8", "int32"]

_RESAMPLED: Mapping[Resample, str] = {
    "linear": "",
    "linear-float": ", resampled without rounding",
    "antialias": ", resampled with antialiasing",
    "bicubic": ", resampled by cubic splines",
    "lanczos": ", resampled by Lanczos's filter",
    "area": ", resampled by area",
}


@dataclass(frozen=True, slots=True)
class PreprocessSpec:
    """Preprocessing of an image to a tensor row. Hashable; its digest goes into the engine card.

    Each channel value v in 0..255 becomes ``(v * scale - mean) / std``.

    Attributes:
        fit: "letterbox" keeps the aspect and pads; "stretch" does not keep it; "center-crop"
            resizes the short side to `crop_ratio` of the input and cuts the middle out.
        anchor: position of a letterboxed image: "center" (YOLO) or "top-left" (YOLOX).
        pad: grey level of the padding, 0 to 255.
        rounding: how the sides of a letterboxed image become whole pixels; None is "nearest" for
            "center" and "down" for "top-left".
        unscale: how boxes of a letterboxed image return to it: "sides" scales by these sides,
            which is exact; "ratio" by the ratio before rounding, as some families' programs do.
            They differ by up to a pixel of the input.
        max_scale: a letterbox never enlarges by more than this; None is no limit.
        crop_ratio: short side after resizing over the input side, for "center-crop" (256 / 224 for
            ImageNet classifiers).
        resample: "linear" is OpenCV's INTER_LINEAR and "area" its INTER_AREA; "linear-float" is
            INTER_LINEAR without rounding to whole levels, if the input is float; "antialias" is
            the BILINEAR of Pillow and torchvision, which a centre crop takes in place of OpenCV's,
            and "bicubic" and "lanczos" are Pillow's.
        channels: order of the model's channels, also of `mean` and `std`.
        mean: per channel, in units after `scale`, and so is `std`.
        dtype: "uint8" and "int32" leave values as they are (scale 1, mean 0, std 1).
        step: sides of the input are multiples of so many pixels, as few as hold the image at the
            scale of height x width, which are the largest; 0 is that size for every image.
    """

    height: int
    width: int
    fit: Fit = "letterbox"
    anchor: Literal["center", "top-left"] = "center"
    rounding: Literal["nearest", "down"] | None = None
    unscale: Literal["sides", "ratio"] = "sides"
    pad: int = 114
    max_scale: float | None = None
    crop_ratio: float = 1.0
    resample: Resample = "linear"
    channels: Channels = "RGB"
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    dtype: PixelType = "float32"
    step: int = 0

    def at(self, size: tuple[int, int]) -> PreprocessSpec:
        """Return the same preprocessing for an input of one (height, width)."""
        return replace(self, height=size[0], width=size[1], step=0)

    @property
    def largest(self) -> PreprocessSpec:
        """Return the same preprocessing for the largest input alone."""
        return replace(self, step=0)

    @property
    def whole(self) -> bool:
        """Return True if values stay whole levels, 0 to 255."""
        return not self.dtype.startswith("float")

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """Return the shape of one row of the batch: [3, H, W] or [H, W, 3]."""
        if self.layout == "NCHW":
            return (3, self.height, self.width)
        return (self.height, self.width, 3)

    @property
    def bare(self) -> PreprocessSpec:
        """Return the same geometry and padding for decoded pixels: uint8, RGB, NHWC."""
        usual = PreprocessSpec(self.height, self.width)
        return replace(
            self,
            channels="RGB",
            scale=1.0,
            mean=usual.mean,
            std=usual.std,
            layout="NHWC",
            dtype="uint8",
        )

    @property
    def text(self) -> str:
        """Describe for people how an image becomes a row."""
        size = f"{self.height}x{self.width}"
        if self.fit == "stretch":
            shape = f"stretched to {size} (height x width)"
        elif self.fit == "center-crop":
            short = round(self.crop_ratio * min(self.height, self.width))
            shape = f"short side resized to {short}, the middle {size} (height x width) cut out"
        else:
            place = "centred" if self.anchor == "center" else "at the top left"
            shape = f"letterboxed to {size} (height x width), {place}, padded with grey {self.pad}"
            if self.step:
                shape += f", cut to multiples of {self.step} that hold the image"
            if self.max_scale is not None:
                shape += f", enlarged {self.max_scale:g} times at most"
        return f"{shape}{_RESAMPLED[self.resample]}; {self.values_text}"

    @property
    def values_text(self) -> str:
        """Describe for people what becomes of a pixel's values."""
        values = f"{self.channels}, 0 to {255 * self.scale:.4g}"
        if any(self.mean):
            values += f", minus mean {_channels(self.mean)}"
        if any(one != 1 for one in self.std):
            values += f", divided by std {_channels(self.std)}"
        return f"{values}; {self.layout} {self.dtype}"

    @property
    def digest(self) -> str:
        """Return the sha256 of the canonical JSON form: equal digests preprocess equally."""
        fields = asdict(self)
        if not self.step:  # of digests from before there was one
            del fields["step"]
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _channels(values: tuple[float, float, float]) -> str:
    return " ".join(f"{value:g}" for value in values)
