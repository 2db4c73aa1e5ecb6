"""One coloured digit on a photograph, and the words for it: "a red seven"."""

from itertools import product

import numpy as np
from PIL import Image

from tools.demo_models.backdrops import PHOTOGRAPHS, Pixels, crop, regrade
from tools.demo_models.glyphs import Split, draw, glyphs

SIDE = 64
COLOURS = {
    "red": (205, 25, 30),
    "green": (30, 150, 45),
    "blue": (35, 65, 215),
    "yellow": (240, 215, 30),
    "purple": (135, 40, 165),
    "white": (248, 248, 245),
    "black": (12, 12, 14),
}
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = (
    "a {colour} {digit}",
    "a photo of a {colour} {digit}",
    "the digit {digit} in {colour}",
    "{colour} {number}",
)
PAIRS = tuple(product(range(len(COLOURS)), range(len(DIGITS))))
# A colour for each digit that training never sees it in: the words must be understood one by one.
HELDOUT = tuple((digit * 3 % len(COLOURS), digit) for digit in range(len(DIGITS)))
VOCABULARY = (
    *("[PAD]", "[UNK]", "a", "photo", "of", "the", "digit", "in"),
    *COLOURS,
    *DIGITS,
    *map(str, range(len(DIGITS))),
)
LENGTH = 8

_CROPS = 12
_FAR = 110.0


def caption(pair: tuple[int, int], template: str = TEMPLATES[0]) -> str:
    """Return the words for a pair of colour and digit."""
    colour, digit = pair
    return template.format(colour=tuple(COLOURS)[colour], digit=DIGITS[digit], number=digit)


def compose(seed: int, split: Split, pairs: tuple[tuple[int, int], ...]) -> tuple[Pixels, int]:
    """Compose an image [64, 64, 3] of one of the pairs, and return its place among them."""
    rng = np.random.default_rng([seed, split == "heldout", 7])
    chosen = int(rng.integers(len(pairs)))
    colour, digit = pairs[chosen]
    ink = np.array(tuple(COLOURS.values())[colour]) + rng.uniform(-18, 18, 3)
    own = [glyph for glyph in glyphs(split) if glyph.label == digit]
    shape = draw(own[rng.integers(len(own))], float(rng.uniform(36, 52)), rng).opacity
    height, width = (min(side, SIDE) for side in shape.shape)
    x, y = (int(rng.integers(0, SIDE - side + 1)) for side in (width, height))
    ground = _ground(split, ink, (x, y, x + width, y + height), rng)
    opacity = shape[:height, :width, None] * rng.uniform(0.9, 1.0)
    part = ground[y : y + height, x : x + width]
    part[:] = part * (1 - opacity) + ink * opacity
    noisy = ground + rng.normal(0.0, rng.uniform(0.0, 6.0), (SIDE, SIDE, 1))
    return np.clip(noisy, 0, 255).astype(np.uint8), chosen


def _ground(
    split: Split,
    ink: np.ndarray,
    box: tuple[int, int, int, int],
    rng: np.random.Generator,
) -> np.ndarray:
    """Return a piece of a photograph on which a person could see the ink."""
    photographs = PHOTOGRAPHS[split]
    for _ in range(_CROPS):
        path = photographs[rng.integers(len(photographs))]
        image = regrade(crop(path, SIDE, SIDE, rng.uniform(1.0, 4.0), rng), rng)
        under = np.asarray(image.crop(box), np.float32)
        near = np.linalg.norm(under - ink, axis=2) < _FAR
        if near.mean() < 0.05:
            return np.array(image, np.float32)
    plain = Image.new("RGB", (SIDE, SIDE), tuple((255 - ink).clip(0, 255).astype(int).tolist()))
    return np.array(plain, np.float32)
