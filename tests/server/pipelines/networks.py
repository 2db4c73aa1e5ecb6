"""A network of faces with weights that nobody trained: equal faces have equal vectors."""

from pathlib import Path

import numpy as np
from onnx import helper
from tests.engines.tiny import constant, save

SIDE = 112
VECTOR = 64


def faces(path: Path) -> Path:
    """Write three strided convolutions and a matrix."""
    random = np.random.default_rng(9)
    nodes, weights, last, channels = [], [], "face", 3
    for at, out in enumerate((16, 32, 32)):
        kernel = random.normal(0, (2 / (9 * channels)) ** 0.5, (out, channels, 3, 3))
        weights.append(constant(f"kernel{at}", kernel.astype(np.float32)))
        nodes += [
            helper.make_node(
                "Conv", [last, f"kernel{at}"], [f"conv{at}"], strides=[2, 2], pads=[1] * 4
            ),
            helper.make_node("Relu", [f"conv{at}"], [f"relu{at}"]),
        ]
        last, channels = f"relu{at}", out
    flat = channels * (SIDE // 8) ** 2
    matrix = random.normal(0, flat**-0.5, (flat, VECTOR)).astype(np.float32)
    weights.append(constant("matrix", matrix))
    nodes += [
        helper.make_node("Flatten", [last], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["embedding"]),
    ]
    inputs = [("face", ["batch", 3, SIDE, SIDE])]
    return save(path, nodes, inputs, [("embedding", ["batch", VECTOR])], weights)


PLATE = (32, 128)
SCENE = (480, 640)
STRIDE = 8


def yellow_plates(path: Path) -> Path:
    """Write a detector in YOLOv8's layout that finds yellow rectangles of 32 x 128 pixels.

    They are found by cells at stride 8 whose middles are theirs; those of 16 and 32 find nothing.
    """
    high, wide = PLATE
    rows, columns = SCENE[0] // STRIDE, SCENE[1] // STRIDE
    cells, others = rows * columns, rows * columns // 4 + rows * columns // 16
    # What is yellow has red and no blue: the mean of the difference over a rectangle.
    kernel = np.zeros((1, 3, high, wide), np.float32)
    kernel[0, 0], kernel[0, 2] = 1 / (high * wide), -1 / (high * wide)
    y, x = np.mgrid[:rows, :columns] * STRIDE + STRIDE / 2
    boxes = np.zeros((1, 4, cells + others), np.float32)
    boxes[0, :, :cells] = np.stack([x, y, 0 * x + wide, 0 * x + high]).reshape(4, -1)
    boxes[0, :, cells:] = np.array([320, 240, 160, 96])[:, None]
    top, left = (high - STRIDE) // 2, (wide - STRIDE) // 2
    weights = [
        constant("kernel", kernel),
        constant("boxes", boxes),
        constant("nothing", np.zeros((1, 1, others), np.float32)),
        constant("least", np.float32(0)),
        constant("most", np.float32(1)),
        constant("flat", np.array([1, 1, cells])),
    ]
    window = {"strides": [STRIDE, STRIDE], "pads": [top, left, top, left]}
    nodes = [
        helper.make_node("Conv", ["images", "kernel"], ["heat"], **window),
        helper.make_node("Clip", ["heat", "least", "most"], ["scores"]),
        helper.make_node("Reshape", ["scores", "flat"], ["columns"]),
        helper.make_node("Concat", ["columns", "nothing"], ["all"], axis=2),
        helper.make_node("Concat", ["boxes", "all"], ["output0"], axis=1),
    ]
    metadata = {"task": "detect", "stride": "32", "names": "{0: 'plate'}"}
    outputs = [("output0", [1, 5, cells + others])]
    return save(path, nodes, [("images", [1, 3, *SCENE])], outputs, weights, metadata=metadata)
