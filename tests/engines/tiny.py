"""Networks of a few kilobytes, so that builds run in a second anywhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 8
CLASSES = 3
SIZE = 64
METADATA = {"names": "{0: 'cat', 1: 'dog', 2: 'bus'}", "stride": "32", "task": "detect"}


def tiny_detector(
    path: Path,
    *,
    batch: int | str = "batch",
    size: tuple[int | str, int | str] = (SIZE, SIZE),
    opset: int = 17,
    metadata: dict[str, str] = METADATA,
    seed: int = 0,
    depth: int = 0,
) -> Path:
    """Write a detector of YOLOv8's layout: boxes inside the input, scores around a half.

    After `depth` layers that INT8 can touch comes a convolution a stride.
    """
    random = np.random.default_rng(seed)
    rows = 4 + CLASSES
    nodes, weights, features = _chain(depth, random)
    channels = CHANNELS if depth else 3
    weights.append(constant("shape", np.array([0, rows, -1])))
    levels = []
    for stride in (8, 16, 32):
        kernel = random.normal(0, 1 / stride, (rows, channels, stride, stride))
        weights.append(constant(f"w{stride}", kernel.astype(np.float32)))
        nodes.append(
            helper.make_node(
                "Conv", [features, f"w{stride}"], [f"c{stride}"], strides=[stride, stride]
            )
        )
        nodes.append(helper.make_node("Reshape", [f"c{stride}", "shape"], [f"l{stride}"]))
        levels.append(f"l{stride}")
    weights += [constant("parts", np.array([4, CLASSES])), constant("side", np.float32(SIZE))]
    nodes += [
        helper.make_node("Concat", levels, ["all"], axis=2),
        helper.make_node("Sigmoid", ["all"], ["one"]),
        helper.make_node("Split", ["one", "parts"], ["box", "score"], axis=1),
        helper.make_node("Mul", ["box", "side"], ["pixels"]),
        helper.make_node("Concat", ["pixels", "score"], ["output0"], axis=1),
    ]
    fixed = all(isinstance(side, int) for side in size)
    boxes = sum((size[0] // s) * (size[1] // s) for s in (8, 16, 32)) if fixed else "boxes"
    return save(
        path,
        nodes,
        [("images", [batch, 3, *size])],
        [("output0", [batch, rows, boxes])],
        weights,
        opset=opset,
        metadata=metadata,
    )


def tiny_network(path: Path, depth: int = 6, seed: int = 0, size: int = SIZE) -> Path:
    """Write a network without a known head: `depth` layers that INT8 can touch, and a last one."""
    random = np.random.default_rng(seed)
    nodes, weights, features = _chain(depth, random)
    weights.append(constant("last", _kernel(random, CHANNELS, CHANNELS)))
    nodes.append(helper.make_node("Conv", [features, "last"], ["out"], "last", pads=[1, 1, 1, 1]))
    shape = ["batch", CHANNELS, size, size]
    return save(path, nodes, [("images", ["batch", 3, size, size])], [("out", shape)], weights)


def _chain(depth: int, random: np.random.Generator):
    """Nodes and weights of convolutions with ReLU, and the name of what comes out."""
    nodes, weights, name = [], [], "images"
    for i in range(depth):
        weights.append(constant(f"w.{i}", _kernel(random, CHANNELS, CHANNELS if i else 3)))
        nodes.append(
            helper.make_node("Conv", [name, f"w.{i}"], [f"c.{i}"], f"layer.{i}", pads=[1, 1, 1, 1])
        )
        name = f"r.{i}"
        nodes.append(helper.make_node("Relu", [f"c.{i}"], [name]))
    return nodes, weights, name


def _kernel(random: np.random.Generator, out: int, channels: int) -> np.ndarray:
    """Weights that leave the size of the values as it is, after a ReLU."""
    deviation = (2 / (9 * channels)) ** 0.5
    return random.normal(0, deviation, (out, channels, 3, 3)).astype(np.float32)


def constant(name: str, value: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, list[int | str]]],
    outputs: Sequence[tuple[str, list[int | str]]],
    weights: Sequence[TensorProto] = (),
    *,
    opset: int = 17,
    metadata: dict[str, str] | None = None,
) -> Path:
    def tensors(specs):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in specs]

    graph = helper.make_graph(nodes, "tiny", tensors(inputs), tensors(outputs), list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path
