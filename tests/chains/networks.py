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
