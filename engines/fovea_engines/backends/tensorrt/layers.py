"""Lists the layers of a TensorRT plan. A build stores the list in a file beside the plan.

TensorRT lists the layers of a loaded engine, with their kernels. A plan of TensorRT for RTX has no
kernels, because they are compiled when a GPU loads the plan. So the list of such a plan has the
layers of the ONNX file, before TensorRT fuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fovea_engines.backends.tensorrt.cuda.quiet import QUIET
from fovea_engines.backends.tensorrt.layers_file import PlanLayer, PlanLayers
from fovea_engines.backends.tensorrt.runtime import Runtime, dtype_name, tensor_spec
from fovea_engines.progress import Progress
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import BackendUnavailable

# Pairs of a pattern and NumPy's name of an element type. The pattern matches the type in TensorRT's
# layer information, e.g. "Half" or "Row major linear FP16 format".
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


def engine_layers(runtime: Runtime, plan: bytes, progress: Progress) -> PlanLayers | None:
    """Return the fused layers of a plan, with shapes for its first profile's optimum batch size.

    Returns:
        The layers. If TensorRT does not list them, None, because a build of several minutes must
        not fail for this reason.
    """
    try:
        with QUIET.synchronising():
            return _engine_layers(runtime, plan)
    # TensorRT 8.6 wrote invalid JSON and text that is not UTF-8 (NVIDIA/TensorRT#2779), so later
    # versions may do so too.
    except (BackendUnavailable, ValueError, TypeError, AttributeError, RuntimeError) as error:
        progress.note(
            "the layer list was made from the ONNX file, because the engine does not list its "
            f"layers: {error}"
        )
        return None


def _engine_layers(runtime: Runtime, plan: bytes) -> PlanLayers | None:
    trt = runtime.trt
    deserializer = runtime.deserializer()
    engine = deserializer.deserialize_cuda_engine(plan)
    if engine is None:
        return None
    inspector = engine.create_engine_inspector()
    # Without an execution context, TensorRT 10 does not report the formats of tensors with a
    # dynamic batch.
    context = _context(engine, trt)
    if context is not None:
        inspector.execution_context = context
    return parse_layers(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _context(engine: Any, trt: Any) -> Any:
    """Return an execution context with the optimum shapes of the first profile.

    If TensorRT does not create it, return None.

    The context has no memory, so it cannot run. The first context of an engine uses the first
    profile by default.
    """
    runtime_config = engine.create_runtime_config()
    strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
    runtime_config.set_execution_context_allocation_strategy(strategy)
    context = engine.create_execution_context(runtime_config)
    if context is None:
        return None
    for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
        fed = engine.get_tensor_mode(name).name == "INPUT"
        if fed and -1 in tuple(engine.get_tensor_shape(name)):
            _, best, _ = engine.get_tensor_profile_shape(name, 0)
            if not context.set_input_shape(name, tuple(best)):
                return None
    return context


def parse_layers(text: str) -> PlanLayers | None:
    """Parse TensorRT's layer information in JSON.

    If the plan was built without details of its layers, return None.

    TensorRT 11 writes the keys "DataType" and "Format"; TensorRT 10 writes the key
    "Format/Datatype".
    """
    # The names of layers may contain control characters, which strict JSON does not allow.
    layers = json.loads(text, strict=False).get("Layers", [])
    if not all(isinstance(layer, dict) for layer in layers) or not layers:
        return None
    return PlanLayers("engine", tuple(map(_parse_layer, layers)))


def _parse_layer(layer: Mapping[str, Any]) -> PlanLayer:
    inputs = tuple(map(_parse_tensor, layer.get("Inputs", [])))
    outputs = tuple(map(_parse_tensor, layer.get("Outputs", [])))
    # The precision of a layer is the element type of its first input. A layer without inputs has
    # the element type of its first output.
    precision = next((tensor.dtype for tensor in (*inputs, *outputs)), "")
    if not precision:
        precision = _dtype(layer.get("Weights", {}).get("Type", ""))
    name, kind = layer.get("Name", ""), layer.get("LayerType", "")
    return PlanLayer(name, kind, precision, inputs, outputs)


def _parse_tensor(tensor: Mapping[str, Any]) -> TensorSpec:
    # TensorRT's documentation has both spellings, "Datatype" and "DataType", so the keys are
    # compared in lower case.
    fields = {key.lower(): value for key, value in tensor.items()}
    text = fields.get("datatype") or fields.get("format/datatype", "")
    return TensorSpec(fields.get("name", ""), _dtype(text), tuple(fields.get("dimensions", ())))


def _dtype(text: str) -> str:
    """Return NumPy's name of a type in TensorRT's layer information, e.g. "float16" for "Half".

    The result is empty for "N/A due to dynamic shapes". Unknown types are returned unchanged.
    """
    if text.startswith("N/A"):
        return ""
    return next((name for pattern, name in _FORMATS if re.search(pattern, text, re.I)), text)


_MULTIPLYING = ("convolution", "deconvolution", "matrix_multiply")
_OF_SHAPES = ("int64", "int32", "bool")


def network_layers(network: Any) -> PlanLayers:
    """Return the layers of a strongly typed `INetworkDefinition`.

    The result omits layers that only prepare weights or compute shapes, because the engine does not
    contain them.
    """
    layers = [network.get_layer(position) for position in range(network.num_layers)]
    makers = {tensor.name: layer for layer in layers for tensor in _outputs(layer)}
    shown = (layer for layer in layers if not _prepares(layer, makers))
    return PlanLayers("network", tuple(_network_layer(layer, makers) for layer in shown))


def _network_layer(layer: Any, makers: Mapping[str, Any]) -> PlanLayer:
    inputs = [layer.get_input(position) for position in range(layer.num_inputs)]
    # TensorRT returns None for an optional input that the model omits.
    taken = [tensor for tensor in inputs if tensor is not None]
    made = [(tensor, makers.get(tensor.name)) for tensor in taken]
    fed = [tensor for tensor, maker in made if maker is None or not _prepares(maker, makers)]
    outputs = tuple(map(tensor_spec, _outputs(layer)))
    precision = outputs[0].dtype if outputs else ""
    if _type(layer) in _MULTIPLYING and (quantised := _quantised(taken, makers)):
        precision = quantised
    return PlanLayer(layer.name, _type(layer), precision, tuple(map(tensor_spec, fed)), outputs)


def _quantised(taken: Iterable[Any], makers: Mapping[str, Any]) -> str:
    """Return the integer type of a layer's operands before dequantisation, e.g. "int8".

    If an operand is not dequantised, or the types differ, return "".
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
    # The parser adds layers whose names have this prefix. Most of them compute shapes (in int64),
    # but some compute data.
    added = layer.name.startswith("ONNXTRT_")
    shapes = added and all(dtype_name(tensor.dtype) in _OF_SHAPES for tensor in outputs)
    return shapes or all(_is_weight(tensor, makers) for tensor in outputs)


def _is_weight(tensor: Any, makers: Mapping[str, Any]) -> bool:
    """Return whether a tensor is a constant, quantised or not."""
    maker = makers.get(tensor.name)
    while maker is not None and _type(maker) in ("quantize", "dequantize", "cast"):
        maker = makers.get(maker.get_input(0).name)
    return maker is not None and _type(maker) == "constant"


def _outputs(layer: Any) -> Iterator[Any]:
    return (layer.get_output(position) for position in range(layer.num_outputs))


def _type(layer: Any) -> str:
    return str(layer.type.name).lower()
