"""Pages of text: drawn ones, with lines of several fonts and sizes, turned, upside down, light on
dark; and photographs with signs, names and numbers.
"""

from functools import cache

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tests.rapidocr import VISION

FOLDER = VISION / "rapidocr" / "models"
MODELS = {
    "find": FOLDER / "PP-OCRv6_det_small.onnx",
    "turn": FOLDER / "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "read": FOLDER / "PP-OCRv6_rec_small.onnx",
}
LINES = (
    "Invoice 2026-0311", "Total: 1,284.50 EUR", "Thank you for your order.", "Gate B17",
    "Departure 14:35", "No parking", "Serial: FX-20931", "Best before 08/2027", "Platform 9",
    "Open Monday to Friday", "Room 204", "Fragile - this side up", "www.example.org",
    "Net weight 450 g", "Way out", "Ticket 77 of 120", "Chapter Three", "Speed limit 60",
)  # fmt: skip
WIDTH, HEIGHT = 640, 480
DRAWN = range(10)
# Of coco64: the ten whose texts RapidOCR is surest of, but for 257. There a sign is cut off by the
# edge, and a box that is a pixel larger has half a letter more.
PHOTOGRAPHS = (
    *("calibration/000000000042", "calibration/000000000081", "calibration/000000000089"),
    *("calibration/000000000247", "calibration/000000000250", "val/000000000885"),
    *("val/000000002592", "val/000000005001", "val/000000006040", "val/000000006460"),
)
# Pillow has one of its own, which is None here; the others come with Matplotlib.
FONTS = (None, "DejaVuSerif", "DejaVuSansMono", "cmss10", "STIXGeneral")
SIZES = (22, 28, 36)
ANGLES = (0, 2, 4, -6, 0, -3, 5, 0, -8, 0)


def photograph(shared, name: str) -> np.ndarray:
    """Return a photograph, BGR, at the size of a page."""
    pixels = cv2.imread(str(shared / "data" / "coco64" / f"{name}.jpg"))
    return cv2.resize(pixels, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def _fonts(name: str | None) -> list[ImageFont.FreeTypeFont]:
    if name is None:
        return [ImageFont.load_default(size) for size in SIZES]
    file = VISION / "matplotlib" / "mpl-data" / "fonts" / "ttf" / f"{name}.ttf"
    return [ImageFont.truetype(file, size) for size in SIZES]


@cache
def drawn(number: int) -> np.ndarray:
    """Return a page, BGR, and the same one for the same number."""
    random = np.random.default_rng(number)
    dark = number % 4 == 3
    ink, ground = ((235,) * 3, (40, 50, 60)) if dark else ((20, 25, 40), (245, 243, 238))
    page = Image.new("RGB", (WIDTH, HEIGHT), ground)
    painter, fonts = ImageDraw.Draw(page), _fonts(FONTS[number % len(FONTS)])
    y = 30
    while y < HEIGHT - 60:
        text, font = str(random.choice(LINES)), fonts[random.integers(len(fonts))]
        x = int(random.integers(20, max(21, WIDTH - int(font.getlength(text)) - 20)))
        painter.text((x, y), text, fill=ink, font=font)
        y += int(font.size * random.uniform(1.9, 2.6))
    pixels = np.asarray(page)[..., ::-1].copy()
    if number % 5 == 4:
        pixels = cv2.rotate(pixels, cv2.ROTATE_180)
    if angle := ANGLES[number]:
        turn = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), angle, 0.93)
        pixels = cv2.warpAffine(pixels, turn, (WIDTH, HEIGHT), borderValue=ground[::-1])
    return pixels
