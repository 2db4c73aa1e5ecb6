"""RapidOCR's chain of three networks by hand: find lines, turn those upside down, read them.

It is written along PaddleOCR's papers and configuration, with ONNX Runtime, OpenCV and numpy.
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import cv2
import numpy as np
from tests.rapidocr import MIN_SIDE
from tests.server.pipelines.loops import session

STEP = 32
SEEN, SURE, GROWTH = 0.3, 0.5, 1.6
TURNED_SCORE, READ_SCORE = 0.9, 0.5
HEIGHT, WIDTH = 48, 320


@dataclass(frozen=True)
class Line:
    """A line of text: corners from its upper left on, its pixels, the angle and what is read."""

    corners: np.ndarray
    crop: np.ndarray
    upright: np.ndarray
    turned: float
    text: str
    score: float


def centred(pixels: np.ndarray) -> np.ndarray:
    return (pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255 - 0.5) / 0.5


def find(model: Path, page: np.ndarray) -> list[np.ndarray]:
    """Corners of lines, from top to bottom and from left to right."""
    height, width = page.shape[:2]
    scale = max(MIN_SIDE / min(height, width), 1)
    size = [round(int(side * scale) / STEP) * STEP for side in (width, height)]
    [[heat]] = session(model).run(None, {"x": centred(cv2.resize(page, size))})[0]
    mask = cv2.dilate((heat > SEEN).astype(np.uint8), np.ones((2, 2), np.uint8))
    found = []
    for outline in cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]:
        middle, sides, angle = cv2.minAreaRect(outline)
        if min(sides) < 3 or _mean(heat, cv2.boxPoints((middle, sides, angle))) < SURE:
            continue
        # A line that is drawn around a rectangle at a distance has it as its rectangle, but larger.
        distance = sides[0] * sides[1] * GROWTH / (2 * sum(sides))
        grown = middle, (sides[0] + 2 * distance, sides[1] + 2 * distance), angle
        corners = cv2.boxPoints(grown) * (width / size[0], height / size[1])
        corners = np.clip(np.round(_in_order(corners)), 0, (width - 1, height - 1))
        found.append(corners.astype(np.float32))
    return _sorted(found)


def _mean(heat: np.ndarray, corners: np.ndarray) -> float:
    mask = np.zeros(heat.shape, np.uint8)
    cv2.fillPoly(mask, [corners.astype(np.int32)], 1)
    return cv2.mean(heat, mask)[0]


def _in_order(corners: np.ndarray) -> np.ndarray:
    """Upper left, upper right, lower right, lower left."""
    left, right = np.split(corners[np.argsort(corners[:, 0])], 2)
    left, right = left[np.argsort(left[:, 1])], right[np.argsort(right[:, 1])]
    return np.array([left[0], right[0], right[1], left[1]])


def _sorted(found: list[np.ndarray]) -> list[np.ndarray]:
    rows: list[list[np.ndarray]] = []
    for each in sorted(found, key=lambda each: each[0, 1]):
        if rows and each[0, 1] - rows[-1][-1][0, 1] < 10:
            rows[-1].append(each)
        else:
            rows.append([each])
    return [each for row in rows for each in sorted(row, key=lambda each: each[0, 0])]


def straightened(page: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Pixels of a line as if it were level; a standing one is laid down."""
    sides = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    width, height = int(max(sides[0], sides[2])), int(max(sides[1], sides[3]))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    moved = cv2.getPerspectiveTransform(corners, target)
    crop = cv2.warpPerspective(
        page, moved, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.ascontiguousarray(np.rot90(crop)) if height >= 1.5 * width else crop


def _row(crop: np.ndarray, width: int) -> np.ndarray:
    """Fit a line in at the left; beside it is the middle of all levels."""
    own = min(ceil(HEIGHT * crop.shape[1] / crop.shape[0]), width)
    row = np.zeros((1, 3, HEIGHT, width), np.float32)
    row[..., :own] = centred(cv2.resize(crop, (own, HEIGHT)))
    return row


def turned(model: Path, crop: np.ndarray) -> float:
    """How likely a line is upside down."""
    [scores] = session(model).run(None, {"x": _row(crop, 192)})[0]
    return float(scores[1])


def read(model: Path, crop: np.ndarray) -> tuple[str, float]:
    """The text of a line, and the mean score of its characters."""
    network = session(model)
    characters = ["", *network.get_modelmeta().custom_metadata_map["character"].split("\n"), " "]
    width = max(WIDTH, int(HEIGHT * crop.shape[1] / crop.shape[0]))
    [steps] = network.run(None, {"x": _row(crop, width)})[0]
    best = steps.argmax(axis=1)
    kept = [i for i, at in enumerate(best) if at and (i == 0 or best[i - 1] != at)]
    if not kept:
        return "", 0.0
    return "".join(characters[best[i]] for i in kept), float(steps.max(axis=1)[kept].mean())


def read_page(models: dict[str, Path], page: np.ndarray) -> list[Line]:
    """Every line of a page that is read with some certainty."""
    lines = []
    for corners in find(models["find"], page):
        crop = straightened(page, corners)
        score = turned(models["turn"], crop)
        upright = cv2.rotate(crop, cv2.ROTATE_180) if score > TURNED_SCORE else crop
        text, certain = read(models["read"], upright)
        if text.strip() and certain >= READ_SCORE:
            lines.append(Line(corners, crop, upright, score, text, certain))
    return lines
