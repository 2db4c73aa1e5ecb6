"""Scenes: handwritten digits composed over a photograph, with their true boxes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from tools.demo_models.backdrops import (
    PHOTOGRAPHS,
    Colour,
    Pixels,
    add_clutter,
    crop,
    random_colour,
    regrade,
)
from tools.demo_models.glyphs import Drawing, Glyph, Split, draw, glyphs

Boxes = NDArray[np.float32]
Corners = tuple[int, int, int, int]

CLASS_NAMES = tuple(str(digit) for digit in range(10))
KEYPOINTS = ("centre", "top left", "top right", "bottom right", "bottom left")
# In half widths and half heights of the rectangle.
POINTS = np.array([(0, 0), (-1, -1), (1, -1), (1, 1), (-1, 1)], np.float32)
# Share of the longer side: 16 and 140 pixels in a scene of 320.
SMALLEST, LARGEST = 0.05, 0.4375
CONTRAST = 75.0
TRIES = 12


@dataclass(frozen=True, slots=True)
class Scene:
    """An image and the digits in it.

    Attributes:
        boxes: x1, y1, x2, y2 of each digit, in pixels, as all below.
        rotated: cx, cy, w, h, angle of the rectangle that is turned as the digit is.
        owners: [height, width], 1 on the ink of the first digit, 2 of the second; 0 on none.
    """

    pixels: Pixels
    boxes: Boxes
    labels: NDArray[np.int64]
    rotated: Boxes
    owners: NDArray[np.uint8]

    def keypoints(self) -> Boxes:
        """Return the centre and the corners of each digit, [n, 5, 2], as `KEYPOINTS` names them."""
        cx, cy, width, height, angle = self.rotated.T[:, :, None]
        along, across = width / 2 * POINTS[:, 0], height / 2 * POINTS[:, 1]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.stack((cx + along * cos - across * sin, cy + along * sin + across * cos), axis=2)


@dataclass(frozen=True, slots=True)
class Layout:
    """Size and contents of a scene."""

    width: int = 320
    height: int = 320
    digits: tuple[int, int] = (1, 10)
    sizes: tuple[float, float] = (SMALLEST, LARGEST)
    clutter: int = 4
    zoom: tuple[float, float] = (1.0, 2.2)
    degrade: bool = True


def compose(seed: int, split: Split, layout: Layout) -> Scene:
    """Compose one scene; the same seed, split and layout give the same scene."""
    rng = np.random.default_rng([seed, split == "heldout"])
    photographs = PHOTOGRAPHS[split]
    path = photographs[rng.integers(len(photographs))]
    image = crop(path, layout.width, layout.height, rng.uniform(*layout.zoom), rng)
    if layout.degrade:
        image = regrade(image, rng)
    add_clutter(image, int(rng.integers(0, layout.clutter + 1)), rng)
    boxes: list[Corners] = []
    labels: list[int] = []
    rotated: list[tuple[float, ...]] = []
    owners = np.zeros((layout.height, layout.width), np.uint8)
    candidates = glyphs(split)
    for _ in range(int(rng.integers(layout.digits[0], layout.digits[1] + 1))):
        glyph = candidates[rng.integers(len(candidates))]
        placed = _place(image, glyph, boxes, layout, rng)
        if placed is not None:
            (x1, y1, x2, y2), drawing = placed
            boxes.append((x1, y1, x2, y2))
            labels.append(glyph.label)
            cx, cy, *rest = drawing.rectangle()
            rotated.append((x1 + cx, y1 + cy, *rest))
            owners[y1:y2, x1:x2][drawing.opacity > 0.5] = len(boxes)
    pixels = np.asarray(_camera(image, rng) if layout.degrade else image, np.uint8)
    return Scene(
        pixels,
        np.asarray(boxes, np.float32).reshape(-1, 4),
        np.asarray(labels, np.int64),
        np.asarray(rotated, np.float32).reshape(-1, 5),
        owners,
    )


def _place(
    image: Image.Image,
    glyph: Glyph,
    taken: list[Corners],
    layout: Layout,
    rng: np.random.Generator,
) -> tuple[Corners, Drawing] | None:
    """Paste a digit where nothing else is; None when no free place was found."""
    longest = max(image.size)
    low, high = np.log(np.asarray(layout.sizes) * longest)
    for _ in range(TRIES):
        # Logarithmic: as many digits between 16 and 32 pixels as between 64 and 128.
        drawing = draw(glyph, float(np.exp(rng.uniform(low, high))), rng)
        height, width = drawing.opacity.shape
        if height >= image.height or width >= image.width:
            continue
        x = int(rng.integers(0, image.width - width + 1))
        y = int(rng.integers(0, image.height - height + 1))
        box = (x, y, x + width, y + height)
        if not any(_touch(box, other) for other in taken):
            _paint(image, drawing.opacity, box, rng)
            return box, drawing
    return None


def _touch(one: Corners, other: Corners) -> bool:
    # The gap leaves room for the label that may lie under either digit.
    gap = 2 + 0.2 * max(one[3] - one[1], other[3] - other[1])
    apart_x = one[0] > other[2] + gap or other[0] > one[2] + gap
    apart_y = one[1] > other[3] + gap or other[1] > one[3] + gap
    return not (apart_x or apart_y)


def _paint(
    image: Image.Image, mask: NDArray[np.float32], box: Corners, rng: np.random.Generator
) -> None:
    if rng.random() < 0.3:
        _stick_label(image, box, rng)
    ground = np.asarray(image.crop(box), np.float32)
    ink = np.asarray(_ink_on(ground, rng), np.float32)
    opacity = (mask * rng.uniform(0.85, 1.0))[..., None]
    blended = ground * (1.0 - opacity) + ink * opacity
    image.paste(Image.fromarray(blended.astype(np.uint8)), (box[0], box[1]))


def _stick_label(image: Image.Image, box: Corners, rng: np.random.Generator) -> None:
    margin = max(2.0, (box[3] - box[1]) * rng.uniform(0.08, 0.2))
    corners = (box[0] - margin, box[1] - margin, box[2] + margin, box[3] + margin)
    ImageDraw.Draw(image).rounded_rectangle(corners, margin * 0.8, random_colour(rng))


def _ink_on(ground: NDArray[np.float32], rng: np.random.Generator) -> Colour:
    """Pick a colour that a person could read on this ground."""
    luma = ground @ np.array([0.299, 0.587, 0.114], np.float32)
    mean, spread = float(luma.mean()), float(luma.std())
    wanted = CONTRAST + min(spread, 40.0)
    for _ in range(40):
        colour = random_colour(rng)
        if abs(0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] - mean) >= wanted:
            return colour
    return (250, 250, 245) if mean < 128 else (8, 8, 12)


def _camera(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Add what a cheap camera does: some blur, some noise."""
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 0.9))))
    if rng.random() < 0.5:
        noise = rng.normal(0.0, rng.uniform(2.0, 9.0), (image.height, image.width, 1))
        noisy = np.asarray(image, np.float32) + noise.astype(np.float32)
        image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    return image
