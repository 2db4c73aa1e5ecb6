"""Describes inputs and outputs of an ONNX graph as `TensorSpec`s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

if TYPE_CHECKING:
    import onnx


def graph_inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs without initializers, which older exporters list as well.

    Raises:
        UnsupportedModel: an input is not a tensor.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    return _specs(value for value in model.graph.input if value.name not in weights)


def graph_outputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the outputs in the graph's order.

    Raises:
        UnsupportedModel: an output is not a tensor.
    """
    return _specs(model.graph.output)


def metadata_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return the exporter's own key-value pairs."""
    return {entry.key: entry.value for entry in model.metadata_props}


def _specs(values: Iterable[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(value) for value in values)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    from onnx.helper import tensor_dtype_to_np_dtype

    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value")
        raise UnsupportedModel(f"{value.name!r} is a {kind}; only tensors are served")
    tensor = value.type.tensor_type
    # A dimension without value and name is dynamic as well; 0 is no size.
    shape = tuple(dim.dim_value or -1 for dim in tensor.shape.dim)
    return TensorSpec(value.name, tensor_dtype_to_np_dtype(tensor.elem_type).name, shape)
