"""Handwritten digits: who is in which split, and how one is drawn at any size."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits

Split = Literal["train", "heldout"]
Mask = NDArray[np.float32]

# Fixed, so that every run of every tool agrees on who was never trained on.
SPLIT_SEED = 20240
HELDOUT_SHARE = 0.2
VISIBLE = 0.25


@dataclass(frozen=True, slots=True)
class Glyph:
    """One handwritten digit as it was scanned: ink from 0 to 1 on an 8x8 grid."""

    label: int
    ink: Mask


@dataclass(frozen=True, slots=True)
class Drawing:
    """A digit as it is pasted.

    Attributes:
        opacity: from 0 to 1; the first and last row and column each hold visible ink.
        angle: of its turn and slant together, radians, clockwise.
    """

    opacity: Mask
    angle: float

    def rectangle(self) -> tuple[float, float, float, float, float]:
        """Return cx cy w h angle around the visible ink, in pixels from the top left corner."""
        y, x = (np.stack(np.nonzero(self.opacity > VISIBLE)) + 0.5).astype(np.float64)
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        own = np.stack((x * cos + y * sin, y * cos - x * sin))
        # A pixel that is turned reaches farther.
        reach = (abs(cos) + abs(sin)) / 2
        low, high = own.min(axis=1) - reach, own.max(axis=1) + reach
        along, across = (low + high) / 2
        width, height = high - low
        return along * cos - across * sin, along * sin + across * cos, width, height, self.angle


@cache
def glyphs(split: Split) -> tuple[Glyph, ...]:
    """Every digit of one split; the two splits share no image."""
    scans = load_digits()
    ink = (np.asarray(scans.images) / 16.0).astype(np.float32)
    # Twins are dropped before splitting, or one could train and the other be tested.
    _, unique = np.unique(ink.reshape(len(ink), -1), axis=0, return_index=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(np.sort(unique))
    cut = int(len(order) * HELDOUT_SHARE)
    chosen = order[:cut] if split == "heldout" else order[cut:]
    return tuple(Glyph(int(scans.target[i]), ink[i]) for i in chosen)


def draw(glyph: Glyph, height: float, rng: np.random.Generator) -> Drawing:
    """Draw a digit, cropped to what can be seen of it.

    Args:
        glyph: The digit.
        height: Height in pixels of its 8x8 grid before it is turned and sheared.
        rng: Decides angle, slant, aspect and thickness of the stroke.
    """
    cell = height / 8.0
    # A 6 turned far enough is a 9: stay well below that.
    angle = np.deg2rad(rng.uniform(-18.0, 18.0))
    slant, aspect = rng.uniform(-0.15, 0.15), rng.uniform(0.8, 1.2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    to_grid = turn @ np.array([[1.0, 0.0], [slant, 1.0 / aspect]]) / cell
    side = int(np.ceil(height * 1.7)) + 4
    centre = np.array([3.5, 3.5]) - to_grid @ np.full(2, (side - 1) / 2.0)
    field = affine_transform(glyph.ink, to_grid, offset=centre, output_shape=(side, side), order=3)
    threshold = rng.uniform(0.4, 0.58)
    # Ink rises from 0 to 1 within about one cell, so this ramp is an edge one pixel wide.
    ramp = float(np.clip(0.7 / cell, 0.04, 0.3))
    opacity = np.clip((field - threshold) / (2 * ramp) + 0.5, 0.0, 1.0)
    # The turn that is nearest to what the drawing does with the grid (polar decomposition).
    left, _, right = np.linalg.svd(np.linalg.inv(to_grid))
    down, aside = (left @ right)[:, 1].tolist()
    return Drawing(_visible(opacity), float(np.arctan2(down, aside)))


def _visible(mask: NDArray[np.floating]) -> Mask:
    rows = np.flatnonzero((mask > VISIBLE).any(axis=1))
    columns = np.flatnonzero((mask > VISIBLE).any(axis=0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(np.float32)
