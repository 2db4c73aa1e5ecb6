"""Reads the images that a built engine is checked with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidImage, InvalidOption
from fovea_preprocess.image import decode_image
from fovea_preprocess.letterbox import fit_spec
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

Pixels = NDArray[np.uint8]

MAX_SAMPLES = 16
MAX_IMAGES = 1000
"""Largest number of images of a directory that are used, for any purpose."""
MOVED = 0.75
"""Scale of an image that is moved."""

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"))
_GREY = 114
_PHOTOGRAPHS = Path(__file__).parent / "photographs"


def image_files(folder: Path, most: int) -> list[Path]:
    """List at most `most` images of a directory, spread evenly over the sorted names.

    Raises:
        InvalidOption: the path is not a directory, or has no image.
    """
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a folder of images")
    files = _require_images(folder, folder.glob("*"))
    taken = np.linspace(0, len(files) - 1, min(most, len(files))).round().astype(int)
    return [files[i] for i in taken]


def images_below(folder: Path) -> list[Path]:
    """List all images of a directory and its subdirectories.

    Hidden directories are skipped, because they hold copies and thumbnails.

    Raises:
        InvalidOption: the path is not a directory, or there is no image.
    """
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a folder of images")
    return _require_images(
        folder, (path for path in folder.rglob("*") if not is_hidden(path, folder))
    )


def is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a path below a directory is hidden, or lies in a hidden subdirectory."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _require_images(folder: Path, paths: Iterable[Path]) -> list[Path]:
    if not (files := sorted(filter(is_image, paths))):
        raise InvalidOption(f"{folder} has no image ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return files


def images_sha256(files: Iterable[Path]) -> str:
    """Return the sha256 over the bytes of images in their order, as hex."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def has_images(folder: Path) -> bool:
    """Return whether a directory contains images, judged by file names."""
    return folder.is_dir() and any(map(is_image, folder.glob("*")))


def is_image(path: Path) -> bool:
    """Return whether a path is a file with the suffix of an image.

    Hidden files do not count: macOS leaves a `._a.jpg` without pixels beside each `a.jpg`.
    """
    hidden = path.name.startswith(".")
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden and path.is_file()


def sample_images(folder: Path | None, most: int = MAX_SAMPLES) -> Iterator[tuple[str, Pixels]]:
    """Yield name and pixels, uint8 RGB [height, width, 3], of the images of `image_files`.

    Without a directory, these are the photographs that ship with Fovea.
    """
    for file in image_files(folder or _PHOTOGRAPHS, most):
        yield file.name, read_image(file)


def read_rows(
    spec: PreprocessSpec, folder: Path | None, most: int, *, moved: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield name and input row, [1, ...], of the images of `sample_images`.

    With `moved`, images are mirrored, smaller, and at the bottom left.
    """
    for name, pixels in sample_images(folder, most):
        yield name, input_row(spec, _mirror(pixels) if moved else pixels)


def input_row(spec: PreprocessSpec, pixels: Pixels) -> Array:
    """Return an image as a batch of one, [1, ...], in the best size if `spec` has several."""
    height, width = pixels.shape[:2]
    return Preprocessor(fit_spec(spec, width, height)).row(pixels)[0]


def _mirror(pixels: Pixels) -> Pixels:
    """Return an image of the same size, with the image mirrored and smaller at the bottom left."""
    height, width, _ = pixels.shape
    sides = max(round(width * MOVED), 1), max(round(height * MOVED), 1)
    small = cv2.resize(pixels[:, ::-1], sides, interpolation=cv2.INTER_AREA)
    whole = np.full_like(pixels, _GREY)
    whole[height - sides[1] :, : sides[0]] = small
    return whole


def sample_image(folder: Path | None, name: str) -> Pixels:
    """Return the pixels of a named image, one of the images of `sample_images`."""
    return read_image((folder or _PHOTOGRAPHS) / name)


def read_image(file: Path) -> Pixels:
    """Return the pixels of a file, uint8 RGB [height, width, 3].

    Raises:
        InvalidImage: the file is damaged.
    """
    try:
        return decode_image(file.read_bytes()).pixels
    except InvalidImage as error:
        raise InvalidImage(f"{file}: {error}") from error
