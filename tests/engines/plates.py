"""Detectors of plates that nobody trained, in the layout of RetinaFace, and images of plates.

They find the plates of `scene` in every image whose first pixel is red, and none in others.
"""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from onnx import helper
from tests.engines.tiny import constant, save
from tools.demo_models.plates import draw

SIDE = 320
WIDE, HIGH = 128, 32
# Middle, and angle in degrees, clockwise; the last two are upside down.
PLACES = [(90, 40, 0), (230, 70, 25), (90, 160, -30), (100, 270, 180), (240, 210, 140)]
SEEDS = range(7_000_100, 7_000_100 + len(PLACES))
# Indices of corners, clockwise from the top left, in the order of CCPD.
CCPD = [2, 3, 0, 1]
STRIDES = (8, 16, 32)
PRIORS = ((16, 32), (64, 128), (256, 512))
LARGE_PRIORS = ((24, 48), (96, 192), (384, 768))
_LEVEL = 1


def outline(x, y, degrees):
    """Corners of a plate, clockwise from the top left of its text."""
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    flat = np.array([[-WIDE, -HIGH], [WIDE, -HIGH], [WIDE, HIGH], [-WIDE, HIGH]]) / 2
    return flat @ turn + (x, y)


def boxes_of(corners):
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


BOXES = boxes_of(np.stack([outline(*place) for place in PLACES]))


def scene(count: int = len(PLACES)) -> tuple[bytes, list[str]]:
    """A PNG file of the first plates, and their texts."""
    pixels = np.full((SIDE, SIDE, 3), 90, np.uint8)
    texts = []
    for place, seed in zip(PLACES[:count], SEEDS, strict=False):
        plate = draw(seed, worn=False)
        high, wide = plate.pixels.shape[:2]
        source = np.float32([[0, 0], [wide, 0], [wide, high], [0, high]])
        matrix = cv2.getPerspectiveTransform(source, outline(*place).astype(np.float32))
        cv2.warpPerspective(
            plate.pixels, matrix, (SIDE, SIDE), pixels, cv2.INTER_AREA, cv2.BORDER_TRANSPARENT
        )
        texts.append(plate.text)
    # Of a mirrored image it is in another corner.
    pixels[0, 0] = (255, 0, 255)
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes(), texts


def fires(white: float):
    """Nodes and weights that compute `fire`, [1, 1, 1]: 1 of an image with such a pixel, else 0.

    No photograph has a corner that is redder than green by half of `white`.
    """
    weights = [constant(f"at{i}", np.array([0, i, 0, 0])) for i in range(2)]
    weights += [constant("low", np.float32(0)), constant("most", np.float32(1))]
    weights += [
        constant("half", np.float32(white / 2)),
        constant("many", np.float32(1e4)),
        constant("flat", np.array([1, 1, 1])),
    ]
    weights += [constant(f"end{i}", np.array([1, i + 1, 1, 1])) for i in range(2)]
    nodes = [
        helper.make_node("Slice", ["images", "at0", "end0"], ["red"]),
        helper.make_node("Slice", ["images", "at1", "end1"], ["green"]),
        helper.make_node("Sub", ["red", "green"], ["more"]),
        helper.make_node("Sub", ["more", "half"], ["over"]),
        helper.make_node("Mul", ["over", "many"], ["much"]),
        helper.make_node("Clip", ["much", "low", "most"], ["fire4"]),
        helper.make_node("Reshape", ["fire4", "flat"], ["fire"]),
    ]
    return nodes, weights


def retinaface_plate(
    path: Path,
    priors: Sequence[tuple[int, int]] = PRIORS,
    *,
    squeezed: bool = False,
    opset: int = 17,
) -> Path:
    """Write a detector whose four nearest cells find each plate by the second of their priors.

    `squeezed` leaves out the axis of the batch of all outputs.
    """
    counts = [(SIDE // stride) ** 2 for stride in STRIDES]
    size, stride, side = 2 * sum(counts), STRIDES[_LEVEL], priors[_LEVEL][1]
    offsets, points = np.zeros((1, size, 4)), np.zeros((1, size, 8))
    shares, change = np.zeros((1, size, 2)), np.zeros((1, size, 2))
    shares[..., 0] = 1
    for box, place in zip(BOXES, PLACES, strict=True):
        middle, sides = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
        first = np.floor(middle / stride - 0.5).astype(int)
        for near, (right, down) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
            column, row = first[0] + right, first[1] + down
            at = 2 * (sum(counts[:_LEVEL]) + row * (SIDE // stride) + column) + 1
            prior = (np.array([column, row]) + 0.5) * stride
            offsets[0, at] = [*(middle - prior) / (0.1 * side), *np.log(sides / side) / 0.2]
            points[0, at] = ((outline(*place)[CCPD] - prior) / (0.1 * side)).ravel()
            change[0, at] = (-0.9 + near / 100, 0.9 - near / 100)
    nodes, weights = fires(255)
    for name, table in {"a": offsets, "b": shares, "c": points, "change": change}.items():
        weights.append(constant(name, table.astype(np.float32)))
    nodes += [
        helper.make_node("Mul", ["change", "fire"], ["found"]),
        helper.make_node("Add", ["b", "found"], ["shares"]),
        # Only so that the tables come of the image.
        helper.make_node("Mul", ["low", "fire"], ["nothing"]),
        helper.make_node("Add", ["a", "nothing"], ["offsets"]),
        helper.make_node("Add", ["c", "nothing"], ["points"]),
    ]
    outputs = []
    weights.append(constant("first", np.array([0])))
    for inner, name, columns in (
        ("offsets", "boxes", 4),
        ("shares", "scores", 2),
        ("points", "landmarks", 8),
    ):
        if not squeezed:
            nodes.append(helper.make_node("Identity", [inner], [name]))
        elif opset < 13:
            nodes.append(helper.make_node("Squeeze", [inner], [name], axes=[0]))
        else:
            nodes.append(helper.make_node("Squeeze", [inner, "first"], [name]))
        outputs.append((name, [size, columns] if squeezed else [1, size, columns]))
    images = [("images", [1, 3, SIDE, SIDE])]
    return save(path, nodes, images, outputs, weights, opset=opset)
