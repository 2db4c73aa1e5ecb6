"""Finds the layers of an ONNX model, and runs them on ONNX Runtime without optimisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import defs
from onnx.helper import get_attribute_value, make_node

from fovea_engines.inspect.network import INPUT, Layer, Operator
from fovea_engines.onnx_graph.plain_session import cannot_run, onnxruntime_errors, open_plain
from fovea_engines.onnx_graph.wiring import tensors_read
from fovea_engines.repository.card import Precision
from fovea_engines.session import NUMPY_NAMES, Array

_QUANTISERS = {"QuantizeLinear", "DequantizeLinear", "QLinearConv"}
_HALVES = {"float16", "bfloat16"}
# Operators whose results depend only on the shapes of their inputs.
_SHAPES_ONLY = {"Shape", "Size"}
_COPIES = {"Identity", "Dropout", "QuantizeLinear", "DequantizeLinear"}
_NORMALISATION = "BatchNormalization"
_FOLDED_INTO = {"Conv", "ConvTranspose", "Gemm"}


class OnnxNetwork:
    """A `Network` for an ONNX model, which runs without optimisation.

    The shapes of its layers are the shapes for `feed`, the input arrays of one image.
    """

    fuses = False

    def __init__(self, model: onnx.ModelProto, feed: Mapping[str, Array]) -> None:
        self._model = model
        self._feed = feed
        self._graph = _Graph(model.graph)
        dtypes = self._dtypes()
        self.layers = self._graph.layers(dtypes, self._shapes(list(dtypes)))
        self.precision = self._precision(set(dtypes.values()))

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Yield for each tensor its values for all feeds.

        One run per feed computes all tensors, and all values stay in memory.
        """
        session = self._open(tensors)
        with onnxruntime_errors(cannot_run):
            rows = [session.run(None, dict(feed)) for feed in feeds]
        yield from map(list, zip(*rows, strict=True))

    def operator(self, layer: Layer) -> Operator | None:
        """Return the operator that computes a layer, or None for an input of the model."""
        nodes = self._graph.makers(layer)
        if not nodes:
            return None
        given = {a.name: get_attribute_value(a) for a in nodes[0].attribute}
        names = [n for node in nodes for n in tensors_read(node) if n not in self._graph.varying]
        values = [value for [value] in self.run(names, [self._feed])] if names else []
        return Operator(
            attributes=self._defaults(nodes[0]) | given,
            given=frozenset(given),
            constants=list(zip(names, values, strict=True)),
        )

    def _defaults(self, node: onnx.NodeProto) -> dict[str, Any]:
        # "ai.onnx" is an alias of the default domain.
        default = {"ai.onnx": ""}
        imported = self._model.opset_import
        versions = {default.get(entry.domain, entry.domain): entry.version for entry in imported}
        domain = default.get(node.domain, node.domain)
        version = versions.get(domain, 1)
        if not defs.has(node.op_type, version, domain):
            return {}
        schema = defs.get_schema(node.op_type, version, domain)
        return {
            name: get_attribute_value(attribute.default_value)
            for name, attribute in schema.attributes.items()
            if attribute.default_value.name
        }

    def _dtypes(self) -> dict[str, str]:
        """Return the element types of the tensors that depend on the inputs.

        Returns:
            Name of each tensor -> NumPy's name of its element type.
        """
        found = {}
        for value in self._open(list(self._graph.varying)).get_outputs():
            if value.type.startswith("tensor(") and value.type != "tensor(string)":
                element = value.type.removeprefix("tensor(").removesuffix(")")
                found[value.name] = NUMPY_NAMES.get(element, element)
        return found

    def _shapes(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        """Return a mapping from the name of each tensor to its shape.

        Additional Shape nodes compute the shapes, so the values of the tensors do not stay in
        memory.
        """
        outputs = [f"shape of {name}" for name in names]
        nodes = [make_node("Shape", [n], [out]) for n, out in zip(names, outputs, strict=True)]
        with onnxruntime_errors(cannot_run):
            shapes = self._open(outputs, nodes).run(None, dict(self._feed))
        return {name: tuple(map(int, s)) for name, s in zip(names, shapes, strict=True)}

    def _precision(self, dtypes: set[str]) -> Precision:
        if any(node.op_type in _QUANTISERS for node in self._graph.nodes):
            return "int8"
        return "fp32" if _HALVES.isdisjoint(dtypes) else "fp16"

    def _open(self, tensors: Sequence[str], more: Sequence[onnx.NodeProto] = ()) -> Any:
        """Open a session that computes some tensors of the graph, and runs additional nodes."""
        with onnxruntime_errors(cannot_run):
            return open_plain(self._part(tensors, more), keeps_memory=False)

    def _part(self, tensors: Sequence[str], more: Sequence[onnx.NodeProto]) -> bytes:
        whole = self._model.graph
        wanted = [*tensors, *(name for node in more for name in node.input)]
        nodes = [*_needed(whole, wanted), *more]
        read = {name for node in nodes for name in tensors_read(node)} | set(wanted)
        part = onnx.ModelProto()
        part.ir_version = self._model.ir_version
        part.opset_import.extend(self._model.opset_import)
        part.functions.extend(self._model.functions)
        part.graph.name = whole.name
        part.graph.node.extend(nodes)
        # Older exporters list weights as inputs, too. Leave out such an input if its weight is left
        # out: otherwise the weight would become a required input.
        weights = {tensor.name for tensor in whole.initializer}
        part.graph.input.extend(v for v in whole.input if v.name in read or v.name not in weights)
        part.graph.initializer.extend(t for t in whole.initializer if t.name in read)
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
        data: bytes = part.SerializeToString()
        return data


class _Graph:
    """The part of a graph on which its outputs depend.

    Attributes:
        nodes: nodes in an order that depends only on the outputs and on the inputs of each node. So
            two files with the same graph have the same order, even if the files store the nodes in
            different orders.
        varying: names of the tensors whose values depend on the inputs.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        weights = {tensor.name for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in weights]
        self.outputs = [value.name for value in graph.output]
        self.nodes = _needed(graph, self.outputs)
        self.varying = dict.fromkeys(self.inputs)
        for node in self.nodes:
            if node.op_type not in _SHAPES_ONLY and any(
                n in self.varying for n in tensors_read(node)
            ):
                self.varying.update(dict.fromkeys(filter(None, node.output)))
        self._readers = Counter(name for node in self.nodes for name in tensors_read(node))
        self._readers.update(self.outputs)
        self._maker = {name: node for node in self.nodes for name in node.output}

    def layers(
        self, dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[Layer, ...]:
        """Return all layers. Values that are not tensors, such as sequences, are left out."""
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
            read = (
                [] if node is None else [original[n] for n in tensors_read(node) if n in original]
            )
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
        """Return the node that computes a layer, and the BatchNormalization in the layer, if any.

        The result is empty for an input of the model.
        """
        nodes = [self._maker[name] for name in layer.names if name in self._maker]
        return [n for n in nodes if layer.name in n.output or n.op_type == _NORMALISATION]

    def _originals(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        """Return a mapping from each tensor that depends on the inputs to its original.

        The original of a copy is the tensor that it copies. The original of every other tensor is
        itself.
        """
        original = {name: name for name in self.inputs if name in dtypes}
        for node in self.nodes:
            source = next(iter(tensors_read(node)), "")
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
            # Most exporters fold a BatchNormalization into the weights of the layer before it. So
            # both nodes count as one layer.
            before = self._maker.get(source)
            alone = self._readers[source] == 1
            return alone and before is not None and before.op_type in _FOLDED_INTO
        return node.op_type in _COPIES


def _needed(graph: onnx.GraphProto, tensors: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes on which tensors depend, depth first along the inputs of each node."""
    maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    to_do = [maker[name] for name in reversed(list(tensors)) if name in maker]
    done: dict[int, None] = {}
    while to_do:
        index = to_do[-1]
        sources = (maker[name] for name in tensors_read(graph.node[index]) if name in maker)
        waiting = [source for source in sources if source not in done]
        if waiting:
            to_do += reversed(waiting)
        else:
            done[to_do.pop()] = None
    return [graph.node[index] for index in done]
