"""Reads the inner tensors of an OpenVINO engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fovea_engines.inspect.network import INPUT, Layer, Operator
from fovea_engines.repository.card import Precision
from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel

# OpenVINO converts QuantizeLinear and DequantizeLinear to this operator, followed by a chain of the
# operators below.
_QUANTISER = "FakeQuantize"
_DEQUANTISERS = {"Convert", "Subtract", "Multiply"}
_LAST_DEQUANTISER = "Multiply"

_Port = tuple[str, int]


class OpenVinoNetwork:
    """A `Network` for OpenVINO IR. Its tensors have the names in the source ONNX file.

    OpenVINO cannot fuse operators across a tensor that is read. If many tensors are read, it
    compiles a different program than for a server. For example, one model was correct when all
    tensors were read, and incorrect on the server. So callers should read each tensor with a
    separate call of `run`, which compiles only the operators before the tensor. The backend must
    have opened the model before, to initialise OpenVINO.
    """

    fuses = True

    def __init__(self, path: Path, precision: Precision, feed: Mapping[str, Array]) -> None:
        import openvino as ov

        with _refusals():
            self._core = ov.Core()
            self._model = self._core.read_model(path)
            self._inputs = [
                next(name for name in port.get_names() if name in feed)
                for port in self._model.inputs
            ]
            shapes = (list(feed[name].shape) for name in self._inputs)
            self._model.reshape(dict(zip(self._model.inputs, shapes, strict=True)))
            self.layers = _Walk(self._model).layers()
        self.precision = precision if precision == "bf16" else self._precision()

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Yield for each tensor its values for all feeds.

        One compiled program computes all tensors.
        """
        with _refusals():
            rows = self._values(tensors, feeds)
        yield from map(list, zip(*rows, strict=True))

    def operator(self, layer: Layer) -> Operator | None:
        """Return None, because OpenVINO does not show how it computes a layer."""
        return None

    def _values(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> list[list[Array]]:
        import openvino as ov

        model = self._model.clone()
        part = ov.Model(model.add_outputs(list(tensors)), model.get_parameters())
        # These are the settings of the backend that serves the engine.
        hint = "bf16" if self.precision == "bf16" else "f32"
        compiled = self._core.compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": hint})
        found = (compiled([feed[name] for name in self._inputs]) for feed in feeds)
        return [[values[tensor].copy() for tensor in tensors] for values in found]

    def _precision(self) -> Precision:
        if any(op.get_type_name() == _QUANTISER for op in self._model.get_ops()):
            return "int8"
        return "fp16" if any(layer.dtype == "float16" for layer in self.layers) else "fp32"


class _Walk:
    """Collects the layers of a model. It visits each operator once, in topological order."""

    def __init__(self, model: Any) -> None:
        self._outputs = {name for port in model.outputs for name in port.get_names()}
        self._ports: list[list[Any]] = []  # for each layer: its port and the ports of its copies
        self._inputs: list[tuple[int, ...]] = []
        self._layer: dict[_Port, int] = {}
        self._nearest: dict[
            _Port, set[int]
        ] = {}  # port that depends on the inputs -> nearest layers
        self._quantised: set[_Port] = set()
        for op in model.get_ordered_ops():
            if op.get_type_name() not in ("Constant", "Result", "ShapeOf"):
                self._visit(op)

    def layers(self) -> tuple[Layer, ...]:
        return tuple(map(self._describe, self._ports, self._inputs))

    def _visit(self, op: Any) -> None:
        sources = [_key(value) for value in op.input_values()]
        varying = [source for source in sources if source in self._nearest]
        kind = op.get_type_name()
        if not varying and kind != "Parameter":
            return
        above = set().union(*(self._nearest[source] for source in varying))
        copied = self._layer.get(sources[0]) if self._copies(kind, sources) else None
        for port in op.outputs():
            here = _key(port)
            if copied is not None:
                self._layer[here] = copied
                self._ports[copied].append(port)
                if kind != _LAST_DEQUANTISER:
                    self._quantised.add(here)
            elif port.get_names():
                self._layer[here] = len(self._ports)
                self._ports.append([port])
                self._inputs.append(tuple(sorted(above)))
            self._nearest[here] = {self._layer[here]} if here in self._layer else above

    def _copies(self, kind: str, sources: Sequence[_Port]) -> bool:
        if not sources:
            return False
        return kind == _QUANTISER or (kind in _DEQUANTISERS and sources[0] in self._quantised)

    def _describe(self, ports: list[Any], inputs: tuple[int, ...]) -> Layer:
        names = [name for port in ports for name in sorted(port.get_names())]
        floats = [p for p in ports if p.get_names() and p.get_element_type().is_real()]
        shown = (floats or ports)[-1]
        node = ports[0].get_node()
        return Layer(
            name=names[0],
            names=tuple(names),
            tensor=sorted(shown.get_names())[0],
            op=INPUT if node.get_type_name() == "Parameter" else "",
            node=node.get_friendly_name(),
            port=ports[0].get_index(),
            dtype=ports[0].get_element_type().to_dtype().name,
            shape=tuple(shown.get_shape()),
            inputs=inputs,
            is_output=not self._outputs.isdisjoint(names),
        )


def _key(port: Any) -> _Port:
    return port.get_node().get_name(), port.get_index()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UnsupportedModel(f"OpenVINO cannot run the model: {error}") from error
