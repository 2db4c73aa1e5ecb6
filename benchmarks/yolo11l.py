"""Writes an ONNX network with the compute of YOLO11-l, MLPerf's detector, and random weights.

    python benchmarks/yolo11l.py yolo11l.onnx

It was written from the published list of layers (arXiv 2410.17725: C3k2, SPPF and C2PSA, width and
depth of "l"), and takes 640 x 640 pixels. It has the time of a trained one, and finds nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SIDE = 640
CLASSES = 80
BINS = 16
# Scores of e^-9: a network that finds nothing spends no time on suppression.
_RARE = -9.0


class Graph:
    """A graph of convolutions that grows node by node; a tensor is its name.

    Attributes:
        macs: multiplications with an addition of all convolutions and products.
        parameters: number of weights.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.macs = self.parameters = 0
        self._shapes: dict[str, tuple[int, int]] = {}
        self._random = np.random.default_rng(11)

    def constant(self, value: NDArray[np.generic]) -> str:
        """Add a constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [*inputs], [name], **attributes))
        return name

    def placed(self, tensor: str, channels: int, side: int) -> str:
        """Note the channels and the side of a tensor."""
        self._shapes[tensor] = channels, side
        return tensor

    def conv(
        self,
        x: str,
        out: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        depthwise: bool = False,
        active: bool = True,
        bias: float = 0.0,
    ) -> str:
        """Convolution with the batch norm folded in, and SiLU where `active`."""
        channels, side = self._shapes[x]
        group = channels if depthwise else 1
        shape = (out, channels // group, kernel, kernel)
        fan = int(np.prod(shape[1:]))
        weight = self._random.normal(0, np.sqrt(2.0 / fan), shape).astype(np.float32)
        constants = self.constant(weight), self.constant(np.full(out, bias, np.float32))
        side //= stride
        self.macs += weight.size * side * side
        self.parameters += weight.size + out
        y = self.node(
            *("Conv", x, *constants),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )
        if active:
            y = self.node("Mul", y, self.node("Sigmoid", y))
        return self.placed(y, out, side)

    def add(self, x: str, y: str) -> str:
        """Add a residual."""
        return self.placed(self.node("Add", x, y), *self._shapes[x])

    def concat(self, *parts: str) -> str:
        """Join along the channels."""
        channels = sum(self._shapes[part][0] for part in parts)
        return self.placed(self.node("Concat", *parts, axis=1), channels, self._shapes[parts[0]][1])

    def split(self, x: str) -> tuple[str, str]:
        """Split the channels into two halves."""
        channels, side = self._shapes[x]
        names = f"t{len(self.nodes)}a", f"t{len(self.nodes)}b"
        self.nodes.append(helper.make_node("Split", [x], [*names], axis=1, num_outputs=2))
        first, second = (self.placed(name, channels // 2, side) for name in names)
        return first, second

    def reshape(self, x: str, *shape: int) -> str:
        """Give a tensor another shape."""
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def twice(self, x: str) -> str:
        """Double the side, each pixel four times."""
        channels, side = self._shapes[x]
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        return self.placed(self.node("Resize", x, "", scales, mode="nearest"), channels, 2 * side)

    def c3k(self, x: str, channels: int) -> str:
        """Two bottlenecks of half the channels, beside a shortcut."""
        half = channels // 2
        y = self.conv(x, half)
        for _ in range(2):
            y = self.add(y, self.conv(self.conv(y, half, 3), half, 3))
        return self.conv(self.concat(y, self.conv(x, half)), channels)

    def c3k2(self, x: str, out: int, share: float = 0.5) -> str:
        """Two `c3k` in a row, all of whose results are joined."""
        channels = int(out * share)
        parts = [*self.split(self.conv(x, 2 * channels))]
        for _ in range(2):
            parts.append(self.c3k(parts[-1], channels))
        return self.conv(self.concat(*parts), out)

    def sppf(self, x: str, out: int) -> str:
        """Pool three times, and join."""
        parts = [self.conv(x, self._shapes[x][0] // 2)]
        for _ in range(3):
            pooled = self.node("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2] * 4)
            parts.append(self.placed(pooled, *self._shapes[parts[0]]))
        return self.conv(self.concat(*parts), out)

    def attention(self, x: str) -> str:
        """Heads of 64 values, with keys of half the size, and a position from a convolution."""
        channels, side = self._shapes[x]
        heads, area = channels // 64, side * side
        joined = self.reshape(self.conv(x, 2 * channels, active=False), 1, heads, 128, area)
        sizes = self.constant(np.array([32, 32, 64], np.int64))
        query, key, value = (f"t{len(self.nodes)}{part}" for part in "qkv")
        self.nodes.append(helper.make_node("Split", [joined, sizes], [query, key, value], axis=2))
        scale = self.constant(np.float32(32**-0.5))
        turned = self.node("Transpose", query, perm=[0, 1, 3, 2])
        weights = self.node("Mul", self.node("MatMul", turned, key), scale)
        weights = self.node("Transpose", self.node("Softmax", weights, axis=-1), perm=[0, 1, 3, 2])
        mixed = self.reshape(self.node("MatMul", value, weights), 1, channels, side, side)
        self.macs += heads * area * area * 96
        values = self.placed(self.reshape(value, 1, channels, side, side), channels, side)
        place = self.conv(values, channels, 3, depthwise=True, active=False)
        mixed = self.placed(self.node("Add", mixed, place), channels, side)
        return self.conv(mixed, channels, active=False)

    def c2psa(self, x: str, out: int) -> str:
        """Attention and a network of two layers, twice, on half the channels."""
        kept, y = self.split(self.conv(x, out))
        for _ in range(2):
            y = self.add(y, self.attention(y))
            y = self.add(y, self.conv(self.conv(y, out), out // 2, active=False))
        return self.conv(self.concat(kept, y), out)


def yolo11l() -> tuple[onnx.ModelProto, Graph]:
    """Build the network; its output is [1, 84, 8400], boxes in pixels and scores 0 to 1."""
    graph = Graph()
    x = graph.conv(graph.conv(graph.placed("images", 3, SIDE), 64, 3, 2), 128, 3, 2)
    x = graph.conv(graph.c3k2(x, 256, 0.25), 256, 3, 2)
    third = graph.c3k2(x, 512, 0.25)
    fourth = graph.c3k2(graph.conv(third, 512, 3, 2), 512)
    x = graph.c3k2(graph.conv(fourth, 512, 3, 2), 512)
    fifth = graph.c2psa(graph.sppf(x, 512), 512)
    middle = graph.c3k2(graph.concat(graph.twice(fifth), fourth), 512)
    small = graph.c3k2(graph.concat(graph.twice(middle), third), 256)
    medium = graph.c3k2(graph.concat(graph.conv(small, 256, 3, 2), middle), 512)
    large = graph.c3k2(graph.concat(graph.conv(medium, 512, 3, 2), fifth), 512)
    output = _head(graph, (small, medium, large))
    graph.nodes[-1].output[0] = "output0"
    assert output == f"t{len(graph.nodes) - 1}", "the head ends the graph"
    made = helper.make_graph(
        graph.nodes,
        "yolo11l",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 4 + CLASSES, 8400])],
        graph.weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model, graph


def _head(graph: Graph, levels: Sequence[str]) -> str:
    boxes, scores, centres, strides = [], [], [], []
    for level, stride in zip(levels, (8, 16, 32), strict=True):
        side = SIDE // stride
        x = graph.conv(graph.conv(level, 64, 3), 64, 3)
        boxes.append(graph.reshape(graph.conv(x, 4 * BINS, active=False), 1, 4 * BINS, side * side))
        x = graph.conv(graph.conv(level, graph._shapes[level][0], 3, depthwise=True), 256)
        x = graph.conv(graph.conv(x, 256, 3, depthwise=True), 256)
        x = graph.conv(x, CLASSES, active=False, bias=_RARE)
        scores.append(graph.reshape(x, 1, CLASSES, side * side))
        row, column = np.divmod(np.arange(side * side), side)
        centres.append(np.stack([column, row]) + 0.5)
        strides.append(np.full(side * side, stride))
    # The distances from a centre to the four edges: means of distributions over 16 bins.
    bins = graph.reshape(graph.node("Concat", *boxes, axis=2), 1, 4, BINS, -1)
    weights = graph.node("Softmax", graph.node("Transpose", bins, perm=[0, 1, 3, 2]), axis=-1)
    steps = graph.constant(np.arange(BINS, dtype=np.float32)[:, None])
    edges = graph.reshape(graph.node("MatMul", weights, steps), 1, 2, 2, -1)
    sign = graph.constant(np.array([-1, 1], np.float32).reshape(1, 2, 1, 1))
    centre = graph.constant(np.concatenate(centres, 1).astype(np.float32)[None, None])
    corners = graph.node("Add", graph.node("Mul", edges, sign), centre)
    # Centre and size from the corners.
    mixing = np.array([[0.5, 0.5], [-1, 1]], np.float32)
    turned = graph.node("Transpose", corners, perm=[0, 3, 1, 2])
    mixed = graph.node("MatMul", graph.constant(mixing), turned)
    flat = graph.reshape(graph.node("Transpose", mixed, perm=[0, 2, 3, 1]), 1, 4, -1)
    pixels = graph.node("Mul", flat, graph.constant(np.concatenate(strides).astype(np.float32)))
    found = graph.node("Sigmoid", graph.node("Concat", *scores, axis=2))
    return graph.node("Concat", pixels, found, axis=1)


if __name__ == "__main__":
    model, graph = yolo11l()
    onnx.save(model, Path(sys.argv[1]))
    print(f"{2e-9 * graph.macs:.1f} GFLOP, {1e-6 * graph.parameters:.1f} million parameters")
