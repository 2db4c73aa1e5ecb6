"""Looks into the branches of control flow, which may read any tensor of the graph around them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node runs, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def tensors_of(graph: onnx.GraphProto) -> set[str]:
    """Return every name of a tensor in a graph, and in those inside it."""
    found = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update(node.input, node.output)
        for inner in subgraphs(node):
            found |= tensors_of(inner)
    return found
