"""Reads the sample images for checking a built engine."""

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
"""Largest number of images that any check uses from a directory."""
MOVED = 0.75
"""Scale of the image in a sample that `_mirror` mirrors, shrinks and moves."""

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"))
_GREY = 114
_PHOTOGRAPHS = Path(__file__).parent / "photographs"


def image_files(folder: Path, most: int) -> list[Path]:
    """List at most `most` images of a directory, spread evenly over the sorted names.

    Raises:
        InvalidOption: the path is not a directory, or the directory contains no image.
    """
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a folder of images")
    files = _require_images(folder, folder.glob("*"))
    taken = np.linspace(0, len(files) - 1, min(most, len(files))).round().astype(int)
    return [files[i] for i in taken]


def images_below(folder: Path) -> list[Path]:
    """List all images of a directory and its subdirectories.

    Hidden directories are skipped, because they usually contain copies and thumbnails.

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
        raise InvalidOption(
            f"{folder} has no image: give a folder with image files "
            f"({', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    return files


def images_sha256(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the bytes of all images, in their order, as hex digits."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def has_images(folder: Path) -> bool:
    """Return whether a directory contains images, judged by file names."""
    return folder.is_dir() and any(map(is_image, folder.glob("*")))


def is_image(path: Path) -> bool:
    """Return whether a path is a file with the suffix of an image.

    Hidden files are not images: macOS writes a file `._a.jpg` without pixels beside `a.jpg`.
    """
    hidden = path.name.startswith(".")
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden and path.is_file()


def sample_images(folder: Path | None, most: int = MAX_SAMPLES) -> Iterator[tuple[str, Pixels]]:
    """Yield the name and the pixels, uint8 RGB [height, width, 3], of each sample image.

    `image_files` chooses the images of the directory. Without a directory, the samples are the
    photographs that are part of Fovea.
    """
    for file in image_files(folder or _PHOTOGRAPHS, most):
        yield file.name, read_image(file)


def read_rows(
    spec: PreprocessSpec, folder: Path | None, most: int, *, moved: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield the name and the input row, [1, ...], of each image of `sample_images`.

    If `moved` is True, `_mirror` changes each image: it is mirrored, and appears smaller at the
    bottom left.
    """
    for name, pixels in sample_images(folder, most):
        yield name, input_row(spec, _mirror(pixels) if moved else pixels)


def input_row(spec: PreprocessSpec, pixels: Pixels) -> Array:
    """Return a preprocessed image as a batch, [1, ...].

    If `spec` allows several sizes, the best size for the image is used.
    """
    height, width = pixels.shape[:2]
    return Preprocessor(fit_spec(spec, width, height)).row(pixels)[0]


def _mirror(pixels: Pixels) -> Pixels:
    """Return an image that shows the original image mirrored and smaller, at the bottom left."""
    height, width, _ = pixels.shape
    sides = max(round(width * MOVED), 1), max(round(height * MOVED), 1)
    small = cv2.resize(pixels[:, ::-1], sides, interpolation=cv2.INTER_AREA)
    whole = np.full_like(pixels, _GREY)
    whole[height - sides[1] :, : sides[0]] = small
    return whole


def sample_image(folder: Path | None, name: str) -> Pixels:
    """Return the pixels of the image of `sample_images` with this name."""
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
