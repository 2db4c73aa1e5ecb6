"""Backdrops: crops of photographs that ship inside scikit-image and scikit-learn, with clutter."""

from functools import cache
from pathlib import Path

import numpy as np
import skimage
import sklearn
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tools.demo_models.glyphs import Split

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]

# Read as files, by name: skimage.data would try to download any that it lacks.
_SKIMAGE, _SKLEARN = Path(skimage.__file__).parent, Path(sklearn.__file__).parent
PHOTOGRAPHS: dict[Split, tuple[Path, ...]] = {
    "train": (
        *(
            _SKIMAGE / "data" / name
            for name in (
                "astronaut.png",
                "brick.png",
                "camera.png",
                "chelsea.png",
                "coins.png",
                "grass.png",
                "gravel.png",
                "hubble_deep_field.jpg",
                "ihc.png",
                "moon.png",
                "motorcycle_left.png",
            )
        ),
        _SKLEARN / "datasets" / "images" / "flower.jpg",
    ),
    "heldout": (
        _SKIMAGE / "data" / "coffee.png",
        _SKIMAGE / "data" / "rocket.jpg",
        _SKLEARN / "datasets" / "images" / "china.jpg",
    ),
}


@cache
def photograph(path: Path) -> Image.Image:
    """Read one photograph once."""
    return Image.open(path).convert("RGB")


def crop(path: Path, width: int, height: int, zoom: float, rng: np.random.Generator) -> Image.Image:
    """Cut a window of the wanted aspect; `zoom` 1 takes the largest that fits."""
    source = photograph(path)
    share = min(source.width / width, source.height / height) / zoom
    left = rng.uniform(0, source.width - width * share)
    top = rng.uniform(0, source.height - height * share)
    window = (left, top, left + width * share, top + height * share)
    image = source.resize((width, height), Image.Resampling.BILINEAR, box=window)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def regrade(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Change light and colour cast, so that a dozen photographs do not look like a dozen."""
    gains = rng.uniform(0.75, 1.25, 3) * rng.uniform(0.6, 1.2)
    pixels = np.asarray(image, np.float32) * gains + rng.uniform(-15, 45)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def random_colour(rng: np.random.Generator) -> Colour:
    """Any colour at all."""
    red, green, blue = (int(value) for value in rng.integers(0, 256, 3))
    return red, green, blue


def add_clutter(image: Image.Image, count: int, rng: np.random.Generator) -> None:
    """Paint shapes that are no digit: no lone short bar (a 1) and no empty ring (a 0)."""
    painter = ImageDraw.Draw(image)
    span = max(image.size)
    for _ in range(count):
        x, y = rng.uniform(0, image.width), rng.uniform(0, image.height)
        radius, colour = rng.uniform(0.03, 0.14) * span, random_colour(rng)
        stroke = max(2, int(radius * rng.uniform(0.08, 0.2)))
        kind = rng.integers(0, 4)
        if kind == 0:
            painter.ellipse((x - radius, y - radius * 0.7, x + radius, y + radius * 0.7), colour)
        elif kind == 1:
            painter.polygon(_around(x, y, radius, int(rng.integers(3, 7)), rng), colour)
        elif kind == 2:
            zigzag = [
                (x + step * radius * 0.6, y + (step % 2) * radius)
                for step in range(int(rng.integers(5, 9)))
            ]
            painter.line(zigzag, colour, stroke)
        else:
            angle = rng.uniform(0, np.pi)
            reach = (np.cos(angle) * span * 1.5, np.sin(angle) * span * 1.5)
            ends = [(x - reach[0], y - reach[1]), (x + reach[0], y + reach[1])]
            painter.line(ends, colour, stroke)


def _around(
    x: float, y: float, radius: float, corners: int, rng: np.random.Generator
) -> list[tuple[float, float]]:
    angles = np.sort(rng.uniform(0, 2 * np.pi, corners))
    return [(x + radius * np.cos(a), y + radius * np.sin(a)) for a in angles.tolist()]
