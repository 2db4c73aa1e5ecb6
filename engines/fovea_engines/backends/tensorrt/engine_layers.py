"""Reads the layers of an engine from TensorRT's inspector."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fovea_engines.backends.tensorrt.compat import Runtime
from fovea_engines.backends.tensorrt.layers import PlanLayer, PlanLayers
from fovea_engines.session import TensorSpec

# The inspector's name of an element type, in all its forms, e.g. "Half", "Row major linear FP16
# format" -> numpy's name.
_FORMATS = (
    (r"FP16|Half", "float16"),
    (r"BF16|BFloat", "bfloat16"),
    (r"FP8|Float8", "float8"),
    (r"FP32|Float", "float32"),
    (r"UInt8", "uint8"),
    (r"Int8", "int8"),
    (r"Int32", "int32"),
    (r"Int64", "int64"),
    (r"Bool", "bool"),
)


def engine_layers(runtime: Runtime, plan: bytes) -> PlanLayers | None:
    """Return the layers of a plan, fused as they run; None if the plan cannot be loaded here."""
    trt = runtime.trt
    engine = trt.Runtime(runtime.logger).deserialize_cuda_engine(plan)
    if engine is None:
        return None
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return inspected_layers(text)


def inspected_layers(text: str) -> PlanLayers | None:
    """Parse the inspector's output; None for a plan that was built without such detail.

    Args:
        text: JSON of ``get_engine_information``. TensorRT 11 has "DataType" and "Format" where 10
            has "Format/Datatype".
    """
    layers = json.loads(text).get("Layers", [])
    if not all(isinstance(layer, dict) for layer in layers) or not layers:
        return None
    return PlanLayers("engine", tuple(map(_inspected_layer, layers)))


def _inspected_layer(layer: Mapping[str, Any]) -> PlanLayer:
    inputs = tuple(map(_inspected_tensor, layer.get("Inputs", [])))
    outputs = tuple(map(_inspected_tensor, layer.get("Outputs", [])))
    # A layer's precision is that of its inputs, or without inputs that of its outputs.
    precision = next((tensor.dtype for tensor in (*inputs, *outputs)), "")
    return PlanLayer(layer["Name"], layer.get("LayerType", ""), precision, inputs, outputs)


def _inspected_tensor(tensor: Mapping[str, Any]) -> TensorSpec:
    # TensorRT's own documentation writes both "Datatype" and "DataType".
    fields = {key.lower(): value for key, value in tensor.items()}
    said = fields.get("datatype") or fields.get("format/datatype", "")
    dtype = next((name for pattern, name in _FORMATS if re.search(pattern, said, re.I)), said)
    return TensorSpec(fields.get("name", ""), dtype, tuple(fields.get("dimensions", ())))
