"""Pictures that a built engine is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.errors import InvalidImage, InvalidOption
from fovea_preprocess.image import decode_image

Pixels = NDArray[np.uint8]

MAX_SAMPLES = 16
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}
# (height, width): a wide, a high and a small one, so that padding lies on either side.
_DRAWN_SIZES = ((480, 640), (720, 405), (200, 200))


def picture_files(folder: Path, most: int) -> list[Path]:
    """Picture files of a folder, at most `most`, spread evenly over their sorted names.

    Raises:
        InvalidOption: the folder is not there or has no picture.
    """
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a folder of pictures")
    files = sorted(p for p in folder.glob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    if not files:
        raise InvalidOption(f"{folder} has no picture ({', '.join(sorted(_SUFFIXES))})")
    taken = np.linspace(0, len(files) - 1, min(most, len(files))).round().astype(int)
    return [files[i] for i in taken]


def sample_images(folder: Path | None, most: int = MAX_SAMPLES) -> Iterator[tuple[str, Pixels]]:
    """Name and pixels, uint8 [height, width, 3] RGB, of each sample.

    Args:
        folder: of pictures; None draws three.
        most: pictures to take from the folder, spread evenly over their names.

    Raises:
        InvalidOption: the folder is not there or has no picture.
        InvalidImage: a picture in it is damaged; the message names it.
    """
    if folder is None:
        for number, (height, width) in enumerate(_DRAWN_SIZES):
            yield f"drawn picture {number + 1}", draw(height, width, seed=number)
        return
    for file in picture_files(folder, most):
        yield file.name, read_picture(file)


def read_picture(file: Path) -> Pixels:
    """Pixels, uint8 [height, width, 3] RGB, of a picture file.

    Raises:
        InvalidImage: it is damaged; the message names it.
    """
    try:
        return decode_image(file.read_bytes()).pixels
    except InvalidImage as error:
        raise InvalidImage(f"{file}: {error}") from error


def draw(height: int, width: int, seed: int) -> Pixels:
    """A picture with edges, gradients and texture, the same for the same seed.

    Noise alone leaves a detector's outputs near zero, where any two engines agree.

    Returns:
        uint8 [height, width, 3].
    """
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    y, x = y / height, x / width
    canvas = np.stack([_waves(x, y, random) for _ in range(3)], axis=-1)
    for _ in range(12):
        cx, cy = random.uniform(0.1, 0.9, 2)
        rx, ry = random.uniform(0.04, 0.25, 2)
        dx, dy = (x - cx) / rx, (y - cy) / ry
        inside = dx**2 + dy**2 < 1 if random.random() < 0.5 else np.maximum(abs(dx), abs(dy)) < 1
        shade = random.uniform(0.6, 1.0) + 0.4 * dy[inside, None]
        canvas[inside] = random.uniform(0, 255, 3) * shade
    canvas += random.normal(0, 6, canvas.shape)
    pixels: Pixels = np.clip(canvas, 0, 255).astype(np.uint8)
    return pixels


def _waves(x: NDArray[Any], y: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    fx, fy, phase = random.uniform(0.5, 4, 3)
    waves: NDArray[Any] = 128 + 70 * np.sin(6.28 * (fx * x + fy * y + phase))
    return waves
