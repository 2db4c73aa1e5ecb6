"""Finds the layers of an ONNX graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fovea_engines.diff.network import INPUT, Layer

if TYPE_CHECKING:
    import onnx

# The results of these do not depend on the values of their inputs.
_SHAPES_ONLY = {"Shape", "Size"}
_COPIES = {"Identity", "Dropout", "QuantizeLinear", "DequantizeLinear"}
_NORMALISATION = "BatchNormalization"
_FOLDED_INTO = {"Conv", "ConvTranspose", "Gemm"}


class OnnxGraph:
    """The part of a graph that its outputs depend on.

    Attributes:
        nodes: in topological order. The order follows from the outputs and the order of each node's
            inputs, so it is the same for every listing of the same graph.
        varying: tensors that depend on the inputs; the others are constants.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        weights = {tensor.name for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in weights]
        self.outputs = [value.name for value in graph.output]
        self.nodes = needed(graph, self.outputs)
        self.varying = dict.fromkeys(self.inputs)
        for node in self.nodes:
            if node.op_type not in _SHAPES_ONLY and any(n in self.varying for n in reads(node)):
                self.varying.update(dict.fromkeys(filter(None, node.output)))
        self._readers = Counter(name for node in self.nodes for name in reads(node))
        self._readers.update(self.outputs)
        self._maker = {name: node for node in self.nodes for name in node.output}

    def layers(
        self, dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[Layer, ...]:
        """Return every layer, in the order of `nodes`.

        Args:
            dtypes: numpy's name of the element type of each varying tensor; a missing one, such as
                a sequence, is no layer.
            shapes: shape of each varying tensor.
        """
        original = self._originals(dtypes)
        copies: dict[str, list[str]] = {}
        for name, first in original.items():
            copies.setdefault(first, []).append(name)
        position = {name: index for index, name in enumerate(copies)}
        outputs = set(self.outputs)
        layers = []
        for name, names in copies.items():
            node = self._maker.get(name)
            same_kind = [n for n in names if "float" in dtypes[n]] or [name]
            tensor = next((n for n in same_kind if n in outputs), same_kind[-1])
            read = [] if node is None else [original[n] for n in reads(node) if n in original]
            layers.append(
                Layer(
                    name=name,
                    names=tuple(names),
                    tensor=tensor,
                    op=INPUT if node is None else node.op_type,
                    node="" if node is None else node.name,
                    port=0 if node is None else list(node.output).index(name),
                    dtype=dtypes[name],
                    shape=shapes[tensor],
                    inputs=tuple(position[n] for n in dict.fromkeys(read)),
                    is_output=not outputs.isdisjoint(names),
                )
            )
        return tuple(layers)

    def makers(self, layer: Layer) -> list[onnx.NodeProto]:
        """Return a layer's node and the normalisation that belongs to it; none for an input."""
        nodes = [self._maker[name] for name in layer.names if name in self._maker]
        return [n for n in nodes if layer.name in n.output or n.op_type == _NORMALISATION]

    def _originals(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        """Map each varying tensor to the tensor that it copies; to itself if it copies none."""
        original = {name: name for name in self.inputs if name in dtypes}
        for node in self.nodes:
            source = next(iter(reads(node)), "")
            for name in node.output:
                if name in self.varying and name in dtypes:
                    first = name == node.output[0]
                    copied = first and source in original and self._copies(node, dtypes)
                    original[name] = original[source] if copied else name
        return original

    def _copies(self, node: onnx.NodeProto, dtypes: Mapping[str, str]) -> bool:
        source = node.input[0]
        if node.op_type == "Cast":
            return all("float" in dtypes[name] for name in (source, node.output[0]))
        if node.op_type == _NORMALISATION:
            # Most exporters fold it into the weights, so both count as one layer.
            before = self._maker.get(source)
            alone = self._readers[source] == 1
            return alone and before is not None and before.op_type in _FOLDED_INTO
        return node.op_type in _COPIES


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield every tensor a node reads, including those that only its subgraphs name."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from reads(inner)


def needed(graph: onnx.GraphProto, tensors: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that some tensors depend on, depth first along each node's inputs."""
    maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    to_do = [maker[name] for name in reversed(list(tensors)) if name in maker]
    done: dict[int, None] = {}
    while to_do:
        index = to_do[-1]
        sources = (maker[name] for name in reads(graph.node[index]) if name in maker)
        waiting = [source for source in sources if source not in done]
        if waiting:
            to_do += reversed(waiting)
        else:
            done[to_do.pop()] = None
    return [graph.node[index] for index in done]
