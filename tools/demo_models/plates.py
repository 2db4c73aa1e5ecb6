"""Plates that no state has issued: drawn, turned, lit and blurred. One seed, one plate."""

import string
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]

LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"
"""Without those that many states leave out, as they look like digits."""
CHARACTERS = string.digits + LETTERS
HEIGHT, WIDTH = 32, 128
"""Sides of what the reader takes."""
SAMPLE = 6_000_007
"""The seed of the plate that ships with the package."""
GREY = 127
"""The level beside a plate that is no four times as wide as high."""

# A letter or a digit at each place; a gap is drawn and not read.
_PATTERNS = ("AA 00 AAA", "A 0000 AA", "AAA 000", "AA 000 AA", "00 AAA 00", "AA 0000", "A 00 AAAA")
_FONTS = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
)
_TALL = 64


@dataclass(frozen=True, slots=True, eq=False)
class Plate:
    """The pixels of a plate, uint8 [height, width, 3], and what is on it, without gaps."""

    pixels: Pixels
    text: str


def draw(seed: int, *, worn: bool = True) -> Plate:
    """Draw the plate of a seed; one that is not worn is upright and sharp."""
    rng = np.random.default_rng(seed)
    text = _text(rng)
    ground, ink = _colours(rng)
    face = _face(text, ground, ink, rng)
    if worn:
        face = _light(_turn(face, rng), rng)
    return Plate(face, text.replace(" ", ""))


def fitted(pixels: Pixels) -> Pixels:
    """Return what a reader sees: BGR at the left of 32 x 128 pixels, and grey beside it."""
    height, width = pixels.shape[:2]
    scale = min(HEIGHT / height, WIDTH / width)
    size = max(1, int(width * scale)), max(1, int(height * scale))
    seen = np.full((HEIGHT, WIDTH, 3), GREY, np.uint8)
    seen[: size[1], : size[0]] = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)[..., ::-1]
    return seen


def _text(rng: np.random.Generator) -> str:
    pattern = _PATTERNS[rng.integers(len(_PATTERNS))]
    choices = {"A": LETTERS, "0": string.digits, " ": " "}
    return "".join(choices[each][rng.integers(len(choices[each]))] for each in pattern)


def _colours(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return dark on light three times in four, else light on dark."""
    tint = rng.uniform(0.55, 1, 3) if rng.random() < 0.5 else np.ones(3)
    light, dark = rng.uniform(170, 255) * tint, rng.uniform(0, 70, 3)
    return (light, dark) if rng.random() < 0.75 else (dark, light)


def _face(
    text: str, ground: NDArray[np.float64], ink: NDArray[np.float64], rng: np.random.Generator
) -> Pixels:
    mask = _ink(text, rng)
    margin = rng.integers(6, 15, 2)
    mask = np.pad(mask, ((margin[0], margin[0]), (margin[1], margin[1])))
    height, width = mask.shape
    if rng.random() < 0.7:
        inset = int(rng.integers(1, 5))
        cv2.rectangle(mask, (inset, inset), (width - inset, height - inset), 255, 2, cv2.LINE_AA)
    levels = np.arange(256)[:, None] / 255
    table = np.round(ground * (1 - levels) + ink * levels).astype(np.uint8)
    return cv2.LUT(cv2.merge([mask] * 3), table[None]).astype(np.uint8)


def _ink(text: str, rng: np.random.Generator) -> Pixels:
    """Return the coverage of the text, uint8, cut to what is inked."""
    choice = int(rng.integers(len(_FONTS) + 2))
    if choice < len(_FONTS):
        scale, thick = 2.0, int(rng.integers(3, 8))
        (wide, high), below = cv2.getTextSize(text, _FONTS[choice], scale, thick)
        mask = np.zeros((high + below + 20, wide + 20), np.uint8)
        cv2.putText(mask, text, (10, high + 10), _FONTS[choice], scale, 255, thick, cv2.LINE_AA)
    else:
        font = ImageFont.load_default(60)
        image = Image.new("L", (int(font.getlength(text)) + 40, 120))
        stroke = int(rng.integers(0, 4))
        ImageDraw.Draw(image).text((20, 10), text, fill=255, font=font, stroke_width=stroke)
        mask = np.array(image)
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    mask = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    width = round(mask.shape[1] * _TALL / mask.shape[0] * rng.uniform(0.6, 1.1))
    return cv2.resize(mask, (width, _TALL), interpolation=cv2.INTER_AREA)


def _turn(face: Pixels, rng: np.random.Generator) -> Pixels:
    """Cut the plate out as a detector would, a little aslant and with some of the car around it."""
    height, width = face.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    slack = rng.uniform(0.03, 0.14, 2) * height
    size = int(width + 2 * slack[0]), int(height + 2 * slack[1])
    moved = corners + slack + rng.normal(0, 0.035 * height, (4, 2))
    angle = rng.normal(0, 0.03)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.array(size) / 2
    moved = ((moved - middle) @ turn.T + middle).astype(np.float32)
    around = rng.uniform(0, 255, 3)
    return cv2.warpPerspective(
        face, cv2.getPerspectiveTransform(corners, moved), size, borderValue=around.tolist()
    ).astype(np.uint8)


def _light(face: Pixels, rng: np.random.Generator) -> Pixels:
    """Shade it, and make it as small, as blurred and as noisy as a camera would."""
    height, width = face.shape[:2]
    small = float(rng.uniform(18, 64)) / height
    size = max(24, round(width * small)), max(12, round(height * small))
    image = cv2.resize(face, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    slope = np.linspace(*rng.uniform(0.55, 1.1, 2), size[0])[None, :, None]
    image = image * slope + rng.uniform(-20, 30)
    if (blur := rng.uniform(-0.5, 0.9)) > 0:
        image = cv2.GaussianBlur(image, (0, 0), blur * size[1] / HEIGHT)
    image += rng.normal(0, rng.uniform(0, 9), image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)
