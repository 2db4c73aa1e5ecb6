"""RapidOCR's own programs: for whole pages, and for text detectors of PP-OCR as in its package."""

import importlib
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

VISION = Path(sys.prefix) / "vision" / "site-packages"
TEXT_MODEL = VISION / "rapidocr" / "models" / "PP-OCRv6_det_small.onnx"
OPTIONS = {"thresh": 0.3, "box_thresh": 0.5, "unclip_ratio": 1.6, "use_dilation": True}
PREPROCESS = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
"""Of its config.yaml."""


MIN_SIDE = 480


def reader(monkeypatch):
    """RapidOCR as a whole; pages of a side under `MIN_SIDE` pixels are enlarged."""
    monkeypatch.syspath_prepend(str(VISION))
    given = {"Global.log_level": "error", "Det.limit_side_len": MIN_SIDE}
    return importlib.import_module("rapidocr").RapidOCR(params=given)


def program(monkeypatch, *, least=736, exact=True):
    """Its preprocessing, and its post-processing of a map [1, 1, h, w] for an image's (h, w).

    It cuts off fractions of pixels before it grows a rectangle and after, which moves corners by up
    to two pixels. With `exact` it does not. Images of a side under `least` pixels are enlarged.
    """
    if not TEXT_MODEL.exists():
        pytest.skip(f"{TEXT_MODEL} is absent: `make test-real` installs it")
    monkeypatch.syspath_prepend(str(VISION))
    utils = importlib.import_module("rapidocr.ch_ppocr_det.utils")

    class Exact(utils.DBPostProcess):
        def unclip(self, box):
            outline = utils.Polygon(box)
            distance = outline.area * self.unclip_ratio / outline.length
            points = outline.buffer(distance, quad_segs=64).exterior.coords
            return np.array(points, np.float32).reshape(-1, 1, 2)

    return utils.DetPreProcess(least), (Exact if exact else utils.DBPostProcess)(**OPTIONS)


def written(height, width):
    """An image, RGB, with six lines of text: middle x y as shares of it, and the angle."""
    lines = [(0.6, 0.1, -10), (0.6, 0.3, -4), (0.6, 0.45, 0), (0.6, 0.6, 5), (0.6, 0.8, 20)]
    image = np.full((height, width, 3), 225, np.uint8)
    for number, (x, y, angle) in enumerate([*lines, (0.12, 0.5, 80)]):
        text, middle = f"line {number} of text", (x * width, y * height)
        (wide, high), _ = cv2.getTextSize(text, 0, width / 600, 3)
        start = round(middle[0] - wide / 2), round(middle[1] + high / 2)
        ink = np.zeros((height, width), np.uint8)
        cv2.putText(ink, text, start, 0, width / 600, 255, 3, cv2.LINE_AA)
        ink = cv2.warpAffine(ink, cv2.getRotationMatrix2D(middle, -angle, 1), (width, height))
        share = ink[..., None] / 255
        image = (image * (1 - share) + np.array([20, 40 * number, 90]) * share).astype(np.uint8)
    return image


def off(outline, others):
    """Return the distance of the nearest quadrilateral, by the farthest corner, and its index."""
    turns = [np.roll(outline, turn, axis=0) for turn in range(4)]
    far = [min(np.abs(one - turn).max() for turn in turns) for one in np.asarray(others)]
    return min(far), int(np.argmin(far))
