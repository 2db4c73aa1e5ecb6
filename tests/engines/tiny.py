"""A detector of a few kilobytes with YOLOv8's layout, so that builds run in a second anywhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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
) -> Path:
    """Write a model: a convolution a stride, boxes inside the input, scores around a half."""
    random = np.random.default_rng(seed)
    rows = 4 + CLASSES
    nodes, weights, levels = [], [constant("shape", np.array([0, rows, -1]))], []
    for stride in (8, 16, 32):
        kernel = random.normal(0, 1 / stride, (rows, 3, stride, stride)).astype(np.float32)
        weights.append(constant(f"w{stride}", kernel))
        nodes.append(
            helper.make_node(
                "Conv", ["images", f"w{stride}"], [f"c{stride}"], strides=[stride, stride]
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
