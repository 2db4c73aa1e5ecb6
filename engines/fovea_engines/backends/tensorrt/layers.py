"""Lists the layers of a TensorRT plan, for a file beside it.

TensorRT lists the layers of a loaded engine, including kernels. A plan of TensorRT-RTX has no
kernels until a GPU compiles it at load, so its list is of the network that was built: layers of the
ONNX file, before they are fused.
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


def engine_layers(runtime: Runtime, plan: bytes, progress: Progress) -> PlanLayers | None:
    """Return the layers of a plan, fused as they run, at the best batch of its first profile.

    None if TensorRT does not list them: a plan that took minutes to build is not lost for that.
    """
    try:
        with QUIET.synchronising():
            return _engine_layers(runtime, plan)
    # TensorRT 8.6 wrote JSON that was none, and text that is no UTF-8 (NVIDIA/TensorRT#2779).
    except (BackendUnavailable, ValueError, TypeError, AttributeError, RuntimeError) as error:
        progress.note(f"the layers are those of the network, as the engine lists none: {error}")
        return None


def _engine_layers(runtime: Runtime, plan: bytes) -> PlanLayers | None:
    trt = runtime.trt
    deserializer = runtime.deserializer()
    engine = deserializer.deserialize_cuda_engine(plan)
    if engine is None:
        return None
    inspector = engine.create_engine_inspector()
    # Without one, TensorRT 10 does not know the formats of tensors with a dynamic batch.
    context = _context(engine, trt)
    if context is not None:
        inspector.execution_context = context
    return parse_layers(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _context(engine: Any, trt: Any) -> Any:
    """Return a context with the best shapes of the first profile; None where TensorRT makes none.

    It has no memory to compute in; the first context of an engine takes that profile by itself.
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
    """Parse the inspector's JSON; None for a plan that was built without such detail.

    TensorRT 11 has "DataType" and "Format" where 10 has "Format/Datatype".
    """
    # Names of layers may have control characters in them.
    layers = json.loads(text, strict=False).get("Layers", [])
    if not all(isinstance(layer, dict) for layer in layers) or not layers:
        return None
    return PlanLayers("engine", tuple(map(_parse_layer, layers)))


def _parse_layer(layer: Mapping[str, Any]) -> PlanLayer:
    inputs = tuple(map(_parse_tensor, layer.get("Inputs", [])))
    outputs = tuple(map(_parse_tensor, layer.get("Outputs", [])))
    # A layer's precision is that of its inputs, or without inputs that of its outputs.
    precision = next((tensor.dtype for tensor in (*inputs, *outputs)), "")
    if not precision:
        precision = _dtype(layer.get("Weights", {}).get("Type", ""))
    name, kind = layer.get("Name", ""), layer.get("LayerType", "")
    return PlanLayer(name, kind, precision, inputs, outputs)


def _parse_tensor(tensor: Mapping[str, Any]) -> TensorSpec:
    # TensorRT's own documentation writes both "Datatype" and "DataType".
    fields = {key.lower(): value for key, value in tensor.items()}
    text = fields.get("datatype") or fields.get("format/datatype", "")
    return TensorSpec(fields.get("name", ""), _dtype(text), tuple(fields.get("dimensions", ())))


def _dtype(text: str) -> str:
    """Return numpy's name of an inspector's type; empty for "N/A due to dynamic shapes"."""
    if text.startswith("N/A"):
        return ""
    return next((name for pattern, name in _FORMATS if re.search(pattern, text, re.I)), text)


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
    """Return the type that both operands are dequantised from; empty where one is not."""
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
