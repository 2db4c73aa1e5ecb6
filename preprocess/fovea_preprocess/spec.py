"""Defines the preprocessing from a decoded image to a model's input, as a value."""

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
    """Settings of the preprocessing from an image to an input row.

    Each channel value v in 0..255 becomes ``(v * scale - mean) / std``. Objects of this class are
    hashable. The engine card contains the `digest` of the settings.

    Attributes:
        height: height of the input in pixels.
        width: width of the input in pixels.
        fit: "letterbox" keeps the aspect ratio and pads; "stretch" changes the aspect ratio;
            "center-crop" resizes the short side to `crop_ratio` times the input's side and cuts out
            the middle.
        anchor: position of a letterboxed image: "center" (YOLO) or "top-left" (YOLOX).
        rounding: rounding of the sides of a letterboxed image to pixels; None means "nearest" for
            "center" and "down" for "top-left".
        unscale: scale for mapping boxes back from a letterboxed image. "sides" uses the rounded
            sides, which is exact. "ratio" uses the ratio before rounding: the original code of some
            model families does this. The results differ by up to one pixel of the input.
        pad: grey level of the padding, 0 to 255.
        max_scale: largest factor by which a letterbox enlarges an image; None means no limit.
        crop_ratio: short side after resizing divided by the input's side, for "center-crop" (256 /
            224 for ImageNet classifiers).
        resample: "linear" is OpenCV's INTER_LINEAR and "area" its INTER_AREA. "linear-float" is
            INTER_LINEAR without rounding to whole levels, if the input is float. "antialias" is
            BILINEAR of Pillow and torchvision, "bicubic" and "lanczos" are Pillow's. A centre crop
            uses "antialias" in place of OpenCV's methods.
        channels: order of the model's channels, and of `mean` and `std`.
        scale: factor of the channel values.
        mean: mean of each channel, in units after `scale`.
        std: standard deviation of each channel, in units after `scale`.
        layout: order of the dimensions.
        dtype: element type; "uint8" and "int32" keep the channel values unchanged (scale 1, mean 0,
            std 1).
        step: 0 if every input is height x width. Otherwise `step` is a number of pixels, and the
            input size depends on the image. The image is scaled as for the largest input, height x
            width. Then the input is the smallest one that holds the image and has sides that are
            multiples of `step`.
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
        """Return this preprocessing for an input of one fixed size, (height, width)."""
        return replace(self, height=size[0], width=size[1], step=0)

    @property
    def largest(self) -> PreprocessSpec:
        """Return this preprocessing for the largest input only."""
        return replace(self, step=0)

    @property
    def whole(self) -> bool:
        """Return whether the input consists of whole numbers from 0 to 255, not of floats."""
        return not self.dtype.startswith("float")

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """Return the shape of one row of the batch: [3, H, W] or [H, W, 3]."""
        if self.layout == "NCHW":
            return (3, self.height, self.width)
        return (self.height, self.width, 3)

    @property
    def bare(self) -> PreprocessSpec:
        """Return a spec with this geometry and padding that keeps the pixels unchanged.

        Its input is uint8, RGB and NHWC.
        """
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
        """Return a description of the preprocessing for users to read."""
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
                shape += (
                    f", with sides cut to the smallest multiples of {self.step} that fit the image"
                )
            if self.max_scale is not None:
                shape += f", enlarged {self.max_scale:g} times at most"
        return f"{shape}{_RESAMPLED[self.resample]}; {self.values_text}"

    @property
    def values_text(self) -> str:
        """Describe the conversion of pixel values for people."""
        values = f"{self.channels}, 0 to {255 * self.scale:.4g}"
        if any(self.mean):
            values += f", minus mean {_channels(self.mean)}"
        if any(one != 1 for one in self.std):
            values += f", divided by std {_channels(self.std)}"
        return f"{values}; {self.layout} {self.dtype}"

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the spec's canonical JSON.

        Specs with equal digests preprocess images in the same way.
        """
        fields = asdict(self)
        if not self.step:  # keep the digests of engines from before this field existed
            del fields["step"]
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _channels(values: tuple[float, float, float]) -> str:
    return " ".join(f"{value:g}" for value in values)
