"""Runs an ONNX model on plain ONNX Runtime, exactly as written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fovea_engines.backends.onnxruntime import NUMPY_NAMES
from fovea_engines.diff.graph import OnnxGraph, needed, reads
from fovea_engines.diff.network import Layer, Operator
from fovea_engines.repository.card import Precision
from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel

if TYPE_CHECKING:
    import onnx

_QUANTISERS = {"QuantizeLinear", "DequantizeLinear", "QLinearConv"}
_HALVES = {"float16", "bfloat16"}


class OnnxNetwork:
    """A `Network` of an ONNX file, run without optimisation.

    Args:
        model: the loaded model; kept.
        feed: one feed of the inputs to compare, for the shapes of the layers.

    Raises:
        UnsupportedModel: ONNX Runtime cannot run it.
    """

    def __init__(self, model: onnx.ModelProto, feed: Mapping[str, Array]) -> None:
        self._model = model
        self._feed = feed
        self._graph = OnnxGraph(model.graph)
        dtypes = self._dtypes()
        self.layers = self._graph.layers(dtypes, self._shapes(list(dtypes)))
        self.precision = self._precision(set(dtypes.values()))

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Yield the values of each tensor for every feed; one run computes and holds all."""
        session = self._open(tensors)
        with _refusals():
            rows = [session.run(None, dict(feed)) for feed in feeds]
        yield from map(list, zip(*rows, strict=True))

    def operator(self, layer: Layer) -> Operator | None:
        """Return the operator of a layer."""
        from onnx.helper import get_attribute_value

        nodes = self._graph.makers(layer)
        if not nodes:
            return None
        given = {a.name: get_attribute_value(a) for a in nodes[0].attribute}
        names = [n for node in nodes for n in reads(node) if n not in self._graph.varying]
        values = [value for [value] in self.run(names, [self._feed])] if names else []
        return Operator(
            attributes=self._defaults(nodes[0]) | given,
            given=frozenset(given),
            constants=list(zip(names, values, strict=True)),
        )

    def _defaults(self, node: onnx.NodeProto) -> dict[str, Any]:
        from onnx import defs
        from onnx.helper import get_attribute_value

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
        """Return numpy's name of the element type of each varying tensor."""
        found = {}
        for value in self._open(list(self._graph.varying)).get_outputs():
            if value.type.startswith("tensor(") and value.type != "tensor(string)":
                element = value.type.removeprefix("tensor(").removesuffix(")")
                found[value.name] = NUMPY_NAMES.get(element, element)
        return found

    def _shapes(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor. The graph computes them, so that no values are kept."""
        from onnx.helper import make_node

        says = [f"shape of {name}" for name in names]
        asks = [make_node("Shape", [n], [said]) for n, said in zip(names, says, strict=True)]
        with _refusals():
            shapes = self._open(says, asks).run(None, dict(self._feed))
        return {name: tuple(map(int, s)) for name, s in zip(names, shapes, strict=True)}

    def _precision(self, dtypes: set[str]) -> Precision:
        if any(node.op_type in _QUANTISERS for node in self._graph.nodes):
            return "int8"
        return "fp32" if _HALVES.isdisjoint(dtypes) else "fp16"

    def _open(self, tensors: Sequence[str], more: Sequence[onnx.NodeProto] = ()) -> Any:
        """Open a session that computes some tensors, followed by more nodes."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False  # the arena would keep the memory of the largest run
        with _refusals():
            return ort.InferenceSession(
                self._part(tensors, more), options, providers=["CPUExecutionProvider"]
            )

    def _part(self, tensors: Sequence[str], more: Sequence[onnx.NodeProto]) -> bytes:
        import onnx

        whole = self._model.graph
        wanted = [*tensors, *(name for node in more for name in node.input)]
        nodes = [*needed(whole, wanted), *more]
        read = {name for node in nodes for name in reads(node)} | set(wanted)
        part = onnx.ModelProto()
        part.ir_version = self._model.ir_version
        part.opset_import.extend(self._model.opset_import)
        part.functions.extend(self._model.functions)
        part.graph.name = whole.name
        part.graph.node.extend(nodes)
        part.graph.input.extend(whole.input)
        part.graph.initializer.extend(t for t in whole.initializer if t.name in read)
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
        data: bytes = part.SerializeToString()
        return data


@contextmanager
def _refusals() -> Iterator[None]:
    import onnxruntime as ort

    errors = ort.capi.onnxruntime_pybind11_state
    try:
        yield
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        raise UnsupportedModel(f"ONNX Runtime cannot run the model: {error}") from error
