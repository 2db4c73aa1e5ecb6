"""Indexes an ONNX graph: which nodes compute and read each tensor, and which are layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from typing import Any

import onnx
from onnx.helper import get_attribute_value

# Operators that change the shape or order of values but not the values themselves.
_SHAPE_OPS = {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}

_PRODUCTS = {"ConvTranspose", "Gemm", "MatMul"}


COUNTING = frozenset({"NonMaxSuppression", "NonZero", "If", "Loop"})
"""Operators whose number of output rows depends on values."""
RANKING = COUNTING | {"TopK"}
"""Operators whose order of output rows depends on values."""


class Wiring:
    """An index of a graph in topological order. Create a new index after you change the graph.

    Attributes:
        nodes: nodes of the graph.
        constants: name of a tensor -> initializer with its values.
        producer: name of a tensor -> node that computes it.
        outputs: names of the graph's outputs.
        consumers: name of a tensor -> nodes that read it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.producer = {output: node for node in graph.node for output in node.output if output}
        self.outputs = {value.name for value in graph.output}
        self.consumers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in tensors_read(node):
                self.consumers[name].append(node)

    def layers(self) -> list[onnx.NodeProto]:
        """Return the convolutions with learned weights, in the order of the graph.

        Convolutions whose input is a softmax are left out. In YOLOv8 and later, such a convolution
        has fixed weights. It computes the mean of a distribution (arXiv 2006.04388), and belongs to
        the decoding of boxes.
        """
        return [
            node
            for node in self.nodes
            if node.op_type == "Conv" and not self._comes_from_softmax(node.input[0])
        ]

    def projections(self) -> list[onnx.NodeProto]:
        """Return the matrix products with learned weights, which transformers contain."""
        return [
            node
            for node in self.nodes
            if node.op_type in ("MatMul", "Gemm")
            and not attribute(node, "transA", 0)
            and (weight := self.constants.get(node.input[1])) is not None
            and len(weight.dims) == 2
            and not self._comes_from_softmax(node.input[0])
        ]

    def head_layers(self) -> set[str]:
        """Return the names of the last layers before the outputs.

        No other layer is between a last layer and an output. If a last layer is a matrix product,
        e.g. in a classifier, the convolutions directly before it are included.
        """
        last = self.last_layers(self.outputs)
        rows = {node.input[0] for node in self.projections() if node.name in last}
        return last | (self.last_layers(rows) & {node.name for node in self.layers()})

    def last_layers(self, tensors: Set[str]) -> set[str]:
        """Return the names of the layers from which a path without layers leads to a tensor."""
        layers = {node.name for node in (*self.layers(), *self.projections())}
        found: set[str] = set()
        reached = set(tensors)
        for node in reversed(self.nodes):
            if reached.isdisjoint(node.output):
                continue
            if node.name in layers:
                found.add(node.name)
            else:
                reached.update(node.input)
        return found

    def decoding(self) -> set[str]:
        """Return the names of the nodes after the last layer, which convert features to results."""
        layers = {node.name for node in self.layers()}
        for node in (one for one in self.nodes if one.op_type in _PRODUCTS):
            learned = not self.constants.keys().isdisjoint(node.input)
            if learned and not self._comes_from_softmax(node.input[0]):
                layers.add(node.name)
        before: set[str] = set()  # tensors on which a layer depends
        after: set[str] = set()
        for node in reversed(self.nodes):
            if node.name in layers or not before.isdisjoint(node.output):
                before.update(node.input)
            else:
                after.add(node.name)
        return after

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that computes a tensor's values, or None for inputs and initializers.

        Nodes that only change the shape or order of the values are skipped.
        """
        node = self.producer.get(name)
        while node is not None and node.op_type in _SHAPE_OPS:
            node = self.producer.get(node.input[0])
        return node

    def _comes_from_softmax(self, name: str) -> bool:
        node = self.maker(name)
        return node is not None and node.op_type == "Softmax"


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return a mapping from the name of each initializer and Constant to its tensor."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node runs, such as the branches of an If."""
    for each in node.attribute:
        if each.type == onnx.AttributeProto.GRAPH:
            yield each.g
        yield from each.graphs


def tensors_of(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors in a graph and its subgraphs."""
    found = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update(node.input, node.output)
        found.update(*map(tensors_of, subgraphs(node)))
    return found


def tensors_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node and its subgraphs read."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from tensors_read(inner)


def outputs_after(model: onnx.ModelProto, operators: Set[str]) -> frozenset[str]:
    """Return the names of the outputs that depend on one of the operators."""
    after = tensors_after(model, operators)
    return frozenset(value.name for value in model.graph.output if value.name in after)


def tensors_after(model: onnx.ModelProto, operators: Set[str]) -> set[str]:
    """Return the names of the tensors that depend on one of the operators."""
    after: set[str] = set()
    for node in model.graph.node:
        if node.op_type in operators or not after.isdisjoint(tensors_read(node)):
            after.update(node.output)
    return after


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, or `default` if the node does not have it."""
    return next((get_attribute_value(a) for a in node.attribute if a.name == name), default)


def output_axis(layer: onnx.NodeProto) -> int:
    """Return the axis of a layer's weight whose elements belong to different output channels."""
    return 0 if layer.op_type == "Conv" or attribute(layer, "transB", 0) else 1


def is_depthwise(node: onnx.NodeProto, weight: onnx.TensorProto) -> bool:
    """Return whether each output channel of a convolution depends on only one input channel."""
    return int(attribute(node, "group", 1)) > 1 and weight.dims[1] == 1


def rebuild(model: onnx.ModelProto, nodes: Iterator[onnx.NodeProto]) -> None:
    """Replace the nodes of a model, and drop unused initializers."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    used = {name for node in kept for name in tensors_read(node)}
    used |= {value.name for value in model.graph.output}
    weights = [t for t in model.graph.initializer if t.name in used]
    weights = [onnx.TensorProto.FromString(t.SerializeToString()) for t in weights]
    del model.graph.node[:], model.graph.initializer[:], model.graph.value_info[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(weights)
