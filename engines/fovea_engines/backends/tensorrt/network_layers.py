"""Lists the layers of a parsed network with their precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fovea_engines.backends.tensorrt.compat import dtype_name, tensor_spec
from fovea_engines.backends.tensorrt.layers import PlanLayer, PlanLayers

_MULTIPLYING = ("convolution", "deconvolution", "matrix_multiply")
_OF_SHAPES = ("int64", "int32", "bool")


def network_layers(network: Any) -> PlanLayers:
    """Return the layers of an `INetworkDefinition` that is strongly typed.

    Layers that only prepare weights or compute shapes are left out: an engine has none of them.
    """
    layers = [network.get_layer(position) for position in range(network.num_layers)]
    makers = {tensor.name: layer for layer in layers for tensor in _outputs(layer)}
    shown = (layer for layer in layers if not _prepares(layer, makers))
    return PlanLayers("network", tuple(_network_layer(layer, makers) for layer in shown))


def _network_layer(layer: Any, makers: Mapping[str, Any]) -> PlanLayer:
    inputs = [layer.get_input(position) for position in range(layer.num_inputs)]
    # An omitted input is None.
    taken = [tensor for tensor in inputs if tensor is not None]
    made = [(tensor, makers.get(tensor.name)) for tensor in taken]
    fed = [tensor for tensor, maker in made if maker is None or not _prepares(maker, makers)]
    outputs = tuple(map(tensor_spec, _outputs(layer)))
    precision = outputs[0].dtype if outputs else ""
    if _type(layer) in _MULTIPLYING and (quantised := _quantised(taken, makers)):
        precision = quantised
    return PlanLayer(layer.name, _type(layer), precision, tuple(map(tensor_spec, fed)), outputs)


def _quantised(taken: Iterable[Any], makers: Mapping[str, Any]) -> str:
    """Return the type that both operands are dequantised from, in which the layer multiplies.

    Empty when an operand is not dequantised.
    """
    kinds = set()
    for tensor in list(taken)[:2]:
        maker = makers.get(tensor.name)
        if maker is None or _type(maker) != "dequantize":
            return ""
        kinds.add(dtype_name(maker.get_input(0).dtype))
    return kinds.pop() if len(kinds) == 1 else ""


def _prepares(layer: Any, makers: Mapping[str, Any]) -> bool:
    outputs = list(_outputs(layer))
    # The parser's names of layers that it adds: arithmetic of shapes, in int64, and some of data.
    added = layer.name.startswith("ONNXTRT_")
    shapes = added and all(dtype_name(tensor.dtype) in _OF_SHAPES for tensor in outputs)
    return shapes or all(_is_weight(tensor, makers) for tensor in outputs)


def _is_weight(tensor: Any, makers: Mapping[str, Any]) -> bool:
    """Return True if a tensor is constant, quantised or not."""
    maker = makers.get(tensor.name)
    while maker is not None and _type(maker) in ("quantize", "dequantize", "cast"):
        maker = makers.get(maker.get_input(0).name)
    return maker is not None and _type(maker) == "constant"


def _outputs(layer: Any) -> Iterator[Any]:
    return (layer.get_output(position) for position in range(layer.num_outputs))


def _type(layer: Any) -> str:
    return str(layer.type.name).lower()
