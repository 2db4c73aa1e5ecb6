"""Pages of text, drawn: lines of several sizes, turned, upside down, light on dark."""

from functools import cache

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

LINES = (
    "Invoice 2026-0311", "Total: 1,284.50 EUR", "Thank you for your order.", "Gate B17",
    "Departure 14:35", "No parking", "Serial: FX-20931", "Best before 08/2027", "Platform 9",
    "Open Monday to Friday", "Room 204", "Fragile - this side up", "www.example.org",
    "Net weight 450 g", "Way out", "Ticket 77 of 120", "Chapter Three", "Speed limit 60",
)  # fmt: skip
COUNT = 10


def _fonts():
    # Pillow has one of its own; OpenCV's are drawn with strokes.
    return [ImageFont.load_default(size) for size in (22, 28, 36)]


@cache
def drawn(number: int) -> np.ndarray:
    """Return a page, BGR, and the same one for the same number."""
    random = np.random.default_rng(number)
    width, height = 640, 480
    dark = number % 4 == 3
    ink, ground = ((235,) * 3, (40, 50, 60)) if dark else ((20, 25, 40), (245, 243, 238))
    page = Image.new("RGB", (width, height), ground)
    painter, fonts = ImageDraw.Draw(page), _fonts()
    y = 30
    while y < height - 60:
        text, font = str(random.choice(LINES)), fonts[random.integers(len(fonts))]
        x = int(random.integers(20, max(21, width - int(font.getlength(text)) - 20)))
        painter.text((x, y), text, fill=ink, font=font)
        y += int(font.size * random.uniform(1.9, 2.6))
    pixels = np.asarray(page)[..., ::-1].copy()
    if number % 5 == 4:
        pixels = cv2.rotate(pixels, cv2.ROTATE_180)
    if angle := (0, 0, 4, -6, 0)[number % 5]:
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 0.93)
        pixels = cv2.warpAffine(pixels, turn, (width, height), borderValue=ground[::-1])
    return pixels
