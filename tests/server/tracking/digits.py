"""Videos of digits that move, cross and are hidden: exact ids, paths and boxes."""

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("skimage", reason="the scenes are composed from photographs in scikit-image")
pytest.importorskip("sklearn", reason="the scenes are composed from digits in scikit-learn")

from tools.demo_models.backdrops import PHOTOGRAPHS, crop
from tools.demo_models.glyphs import draw, glyphs

WIDTH, HEIGHT, FPS, LENGTH = 320, 240, 10, 40
SHADE = 110
"""Width of what passes close before the camera now and then, from top to bottom."""
_MARGIN = 4


@dataclass
class MovingDigit:
    """A digit on its way, on a card.

    Attributes:
        opacity: [h, w], 0 to 1.
        corners: its upper left one in each frame, [LENGTH, 2], whole pixels.
    """

    label: int
    opacity: np.ndarray
    corners: np.ndarray

    def box(self, frame):
        (x, y), (height, width) = self.corners[frame], self.opacity.shape
        return int(x), int(y), int(x + width), int(y + height)


class DigitScene:
    """A video: every other digit goes to the right, and the rest come towards them."""

    def __init__(self, seed, digits=4):
        chance = np.random.default_rng(seed)
        paths = PHOTOGRAPHS["heldout"]
        photograph = crop(paths[chance.integers(len(paths))], WIDTH, HEIGHT, 1.2, chance)
        self._ground = np.asarray(photograph, np.float32)
        self._shades = [
            (start, start + chance.integers(2, 4), chance.integers(0, WIDTH - SHADE))
            for start in chance.integers(5, LENGTH - 5, 3)
        ]
        self.digits = [self._digit(chance, number, digits) for number in range(digits)]

    @staticmethod
    def _digit(chance, number, digits):
        candidates = glyphs("heldout")
        glyph = candidates[chance.integers(len(candidates))]
        opacity = draw(glyph, chance.uniform(44, 60), chance).opacity
        height, width = opacity.shape
        # Lanes that overlap: digits meet, and the one with the higher number is in front.
        least, most = _MARGIN, HEIGHT - height - _MARGIN
        top = least + (most - least) * (number + chance.uniform(-0.15, 0.15)) / (digits - 1)
        start = chance.uniform(20, 50)
        x = start + np.arange(LENGTH) * chance.uniform(3.6, 4.4)
        x = x if number % 2 else WIDTH - width - x
        y = np.clip(top + chance.uniform(-12, 12) * np.sin(x / 40), least, most)
        corners = np.stack([x, y], 1).round().astype(int)
        return MovingDigit(glyph.label, opacity, corners)

    def frame(self, number):
        """Pixels, uint8 RGB, and the share of each digit that is seen."""
        pixels = self._ground.copy()
        owner = np.full((HEIGHT, WIDTH), -1)
        for index, digit in enumerate(self.digits):
            x1, y1, x2, y2 = digit.box(number)
            card = slice(y1 - _MARGIN, y2 + _MARGIN), slice(x1 - _MARGIN, x2 + _MARGIN)
            pixels[card], owner[card] = 235, -1
            pixels[y1:y2, x1:x2] *= 1 - 0.9 * digit.opacity[..., None]
            owner[y1:y2, x1:x2][digit.opacity > 0.5] = index
        for start, stop, left in self._shades:
            if start <= number < stop:
                pixels[:, left : left + SHADE] = 40, 60, 90
                owner[:, left : left + SHADE] = -1
        seen = [
            (owner == index).sum() / (digit.opacity > 0.5).sum()
            for index, digit in enumerate(self.digits)
        ]
        return pixels.astype(np.uint8), seen
