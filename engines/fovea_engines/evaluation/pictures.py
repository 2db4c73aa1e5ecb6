"""Compares the outputs of image-to-image models with the desired output images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fovea_engines.engine import Engine
from fovea_engines.evaluation.class_maps import pairs_of
from fovea_engines.evaluation.samples import Pixels, has_images, image_files, read_image
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import PictureAccuracy
from fovea_engines.repository.files import file_sha256, json_sha256
from fovea_engines.results.new_image import NewImage
from fovea_preprocess.errors import InvalidOption

MAX_PSNR: Final = 100.0
"""Largest PSNR in dB. Equal images have an infinite PSNR, and get this value instead."""

# Radius and standard deviation of the window of SSIM, in pixels. Wang et al. 2004 use a window of
# 11 pixels.
_WINDOW_RADIUS, _WINDOW_SIGMA = 5, 1.5
_WHITE = 255
_STABLE = (0.01 * _WHITE) ** 2, (0.03 * _WHITE) ** 2

Floats = NDArray[np.float64]
Paint = Callable[[Path], Pixels]
"""Function that returns a model's output for an image file, RGB [h, w, 3] or grey [h, w]."""


@dataclass(frozen=True, slots=True, eq=False)
class PicturePairs:
    """Input images with their desired output images.

    Attributes:
        path: directory of the output images.
        images: pairs of an input image and its output image.
    """

    path: Path
    images: tuple[tuple[Path, Path], ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the input images."""
        return tuple(image for image, _ in self.images)

    def keep_images(self, paths: Container[Path]) -> Self:
        """Return the dataset with only these images."""
        return replace(self, images=tuple(each for each in self.images if each[0] in paths))

    def match_classes(self, labels: Sequence[str] | None, num_classes: int | None = None) -> Self:
        """Return the dataset unchanged, because it has no classes."""
        return self

    def sha256(self) -> str:
        """Return the SHA-256 of all input and output images as hex digits."""
        return json_sha256(
            [(path.name, file_sha256(path)) for each in self.images for path in each]
        )

    def measure(self, paint: Paint, progress: Progress | None = None) -> PictureAccuracy:
        """Measure the similarity of a model's outputs and the desired outputs, in RGB.

        Raises:
            InvalidOption: the size of an output differs from the size of the desired image.
        """
        progress = progress or Progress()
        figures = []
        with progress.phase("accuracy"):
            for image, file in progress.each(self.images, len(self.images)):
                wanted, found = read_image(file), paint(image)
                if wanted.shape[:2] != found.shape[:2]:
                    sizes = (f"{h}x{w}" for h, w, *_ in (wanted.shape, found.shape))
                    raise InvalidOption(
                        f"{file} has the size {next(sizes)}, but the model's output for {image} "
                        f"has {next(sizes)} (height x width): give images of the same size"
                    )
                found = np.broadcast_to(found.reshape(*found.shape[:2], -1), wanted.shape)
                figures.append((psnr(wanted, found), ssim(wanted, found)))
        ratio, alike = np.mean(figures, axis=0).tolist()
        return PictureAccuracy(len(figures), alike, ratio)


def holds_pictures(data: Path, images: Path | None) -> bool:
    """Return whether a directory contains output images, and the input images exist.

    Output images are colour images or JPEG files. PNG files with one grey level or index per pixel
    are class maps, and not output images.
    """
    folder = data.parent / "images" if images is None else images
    if not has_images(data) or not folder.is_dir() or folder.resolve() == data.resolve():
        return False
    [first] = image_files(data, 1)
    try:
        with Image.open(first) as image:
            return first.suffix.lower() != ".png" or image.mode.startswith("RGB")
    except (OSError, UnidentifiedImageError):
        return False


def read_pictures(data: Path, images: Path | None = None) -> PicturePairs:
    """Read a directory of output images. `read_class_maps` explains where the input images are."""
    return PicturePairs(data, pairs_of(data, image_files(data, sys.maxsize), images))


def paint_with(engine: Engine) -> Paint:
    """Return a function that computes output images with an engine."""

    def paint(image: Path) -> Pixels:
        found = engine.predict(read_image(image))
        assert isinstance(found, NewImage), "the task was checked"
        return found.rgb

    return paint


def psnr(want: Pixels, have: Pixels) -> float:
    """Return the peak signal-to-noise ratio of two images in dB, at most `MAX_PSNR`."""
    error = float(np.square(want.astype(np.float64) - have).mean())
    return min(MAX_PSNR, 10 * float(np.log10(_WHITE**2 / error))) if error else MAX_PSNR


def ssim(want: Pixels, have: Pixels) -> float:
    """Return the structural similarity of two images [h, w, c], the mean over channels.

    The formula is from Wang et al. 2004 (doi 10.1109/TIP.2003.819861). Only windows inside the
    image are used.

    Raises:
        InvalidOption: a side is shorter than the window.
    """
    if min(want.shape[:2]) <= 2 * _WINDOW_RADIUS:
        raise InvalidOption(
            f"only images of at least {2 * _WINDOW_RADIUS + 1} pixels in width and height can be "
            "compared"
        )
    x, y = want.astype(np.float64), have.astype(np.float64)
    mean_x, mean_y = _gaussian_mean(x), _gaussian_mean(y)
    spread = _gaussian_mean(x * x) - mean_x**2 + _gaussian_mean(y * y) - mean_y**2
    shared = _gaussian_mean(x * y) - mean_x * mean_y
    light = (2 * mean_x * mean_y + _STABLE[0]) / (mean_x**2 + mean_y**2 + _STABLE[0])
    return float((light * (2 * shared + _STABLE[1]) / (spread + _STABLE[1])).mean())


def _gaussian_mean(values: Floats) -> Floats:
    """Return the Gaussian-weighted mean of each window that lies inside the image."""
    side = 2 * _WINDOW_RADIUS + 1
    blurred = np.asarray(cv2.GaussianBlur(values, (side, side), _WINDOW_SIGMA), np.float64)
    return blurred[_WINDOW_RADIUS:-_WINDOW_RADIUS, _WINDOW_RADIUS:-_WINDOW_RADIUS]
