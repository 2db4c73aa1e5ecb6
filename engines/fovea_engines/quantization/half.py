"""FP16: adds casts to a graph, checks it for overflow, and simulates it in float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array

from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.evaluation.samples import read_rows
from fovea_engines.onnx_graph.wiring import Wiring, attribute, rebuild
from fovea_preprocess.errors import Disagreement, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

_COARSE = 512.0
# Number of images for the overflow check of float16.
_IMAGES = 4
_LARGEST = float(np.finfo(np.float16).max)

# Operators that compute in float16, without float inputs that must stay float32.
_HALVED = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Exp", "Neg", "Abs", "Min", "Max"),
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "BatchNormalization", "InstanceNormalization"),
    *("Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish"),
    *("Tanh", "Softplus", "Softmax", "Erf", "Gelu", "Mish"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"),
    *("Concat", "Split", "Slice", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"),
    *("Expand", "Tile", "Gather", "Pad", "Identity", "DepthToSpace", "SpaceToDepth", "Resize"),
    *("QuantizeLinear", "DequantizeLinear"),
}
# Operator -> inputs that are always float32.
_ALWAYS_FLOAT = {"Resize": {2}}


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a normalised model that computes in float16.

    Inputs and outputs stay float32.

    Nodes after the last layer stay float32, because coordinates over 512 would move in steps of
    half a pixel. Layers with a bias of this size also stay float32, and operators without a float16
    form.

    Raises:
        UnsupportedModel: a constant exceeds the range of float16.
    """
    halved = deepcopy(model)
    rebuild(halved, _Halving(halved).nodes())
    return halved


def check_overflow(model: onnx.ModelProto, spec: PreprocessSpec, images: Path | None) -> None:
    """Check that float16 tensors of a graph stay finite on a few images.

    On a CPU, ONNX Runtime computes float16 layers in float32 and rounds only the outputs of the
    graph. So the outputs would not show the overflow of a GPU.

    Raises:
        Disagreement: a float16 tensor is not finite.
    """
    half = _half_tensors(model)
    names = [name for node in model.graph.node for name in node.output if name in half]
    if not names:
        return
    reference = ReferenceSession(model, names)
    for image, row in read_rows(spec, images, _IMAGES):
        for name, values in zip(names, reference.run(names, row), strict=True):
            if not np.isfinite(values).all():
                raise Disagreement(
                    f"on {image} the tensor {name!r} exceeds 65504, the maximum of float16: build "
                    "with --precision fp32"
                )


def round_to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 graph that rounds to float16, and overflows, exactly where a GPU does.

    CPU runtimes interpret a float16 graph by `to_half` only as a hint. ONNX Runtime and OpenVINO
    compute it entirely in float32, where 100 * 1000 does not overflow. In the returned graph every
    result is cast to float16. Integers are multiplied as integers, so the output of a
    DequantizeLinear is not rounded.
    """
    simulated = deepcopy(model)
    for constant in simulated.graph.initializer:
        if constant.data_type == TensorProto.FLOAT16:
            constant.CopyFrom(from_array(to_array(constant).astype(np.float32), constant.name))
    rebuild(simulated, _round_nodes(simulated, _half_tensors(model)))
    return simulated


def _round_nodes(model: onnx.ModelProto, halves: set[str]) -> Iterator[onnx.NodeProto]:
    for node in list(model.graph.node):
        if node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT16:
            node.op_type = "Identity"
            del node.attribute[:]
        if node.op_type == "DequantizeLinear":
            yield node
            continue
        ends = [name for name in node.output if name in halves]
        for i, name in enumerate(node.output):
            if name in ends:
                node.output[i] = f"{name}/exact"
        yield node
        for name in ends:
            exact, half = f"{name}/exact", f"{name}/rounded"
            yield make_node("Cast", [exact], [half], half, to=TensorProto.FLOAT16)
            yield make_node("Cast", [half], [name], f"{half}/back", to=TensorProto.FLOAT)


class _Halving:
    """The nodes of a graph, with casts between float16 and float32 parts.

    A tensor has its own name in the type of its computation. In the other type it is named
    NAME/half or NAME/float. Only a graph output is always float32 under its own name.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._wiring = wiring = Wiring(model)
        kept = wiring.decoding() | set(_coarse(wiring))
        self._halved = {
            node.name for node in wiring.nodes if node.op_type in _HALVED and node.name not in kept
        }
        self._floats = _float_tensors(model)
        made = (node.output for node in wiring.nodes if node.name in self._halved)
        self._half = {name for names in made for name in names if name in self._floats}
        self._outputs = wiring.outputs & self._half
        self._converted: set[str] = set()

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes in topological order, and add float16 constants to the model."""
        for node in self._wiring.nodes:
            halved = node.name in self._halved
            always_float = _ALWAYS_FLOAT.get(node.op_type, ())
            for i, name in enumerate(node.input):
                if name in self._floats:
                    node.input[i], cast = self._convert(name, halved and i not in always_float)
                    yield from cast
            ends = [name for name in node.output if name in self._outputs]
            for i, name in enumerate(node.output):
                if name in ends:
                    node.output[i] = f"{name}/half"
            yield node
            for name in ends:
                yield _cast(f"{name}/half", name, half=False)

    def _convert(self, name: str, half: bool) -> tuple[str, list[onnx.NodeProto]]:
        """Return the name of a tensor in a type, and the cast that is needed to create it."""
        if name in self._outputs:
            return (f"{name}/half" if half else name), []
        if (name in self._half) == half:
            return name, []
        other = f"{name}/half" if half else f"{name}/float"
        if other in self._converted:
            return other, []
        self._converted.add(other)
        if name in self._wiring.constants:
            _halve_constant(self._model, self._wiring.constants[name], other)
            return other, []
        return other, [_cast(name, other, half)]


def _coarse(wiring: Wiring) -> Iterator[str]:
    """Yield layers whose bias float16 rounds by a quarter or more, and their activations.

    The inputs of such a layer must cancel the bias, and the rounding error remains: u2netp has a
    bias of 1361. The activation is included because TensorRT treats a layer between two casts as a
    float16 layer.
    """
    for node in wiring.layers():
        bias = wiring.constants.get(node.input[2]) if len(node.input) > 2 else None
        if bias is not None and np.abs(to_array(bias)).max(initial=0.0) >= _COARSE:
            yield node.name
            yield from (taker.name for taker in wiring.consumers[node.output[0]])


def _cast(name: str, other: str, half: bool) -> onnx.NodeProto:
    to = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    return make_node("Cast", [name], [other], f"{other}/Cast", to=to)


def _float_tensors(model: onnx.ModelProto) -> set[str]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = _cast_values([*graph.input, *graph.value_info, *graph.output], TensorProto.FLOAT)
    return values | {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT}


def _half_tensors(model: onnx.ModelProto) -> set[str]:
    inner = onnx.shape_inference.infer_shapes(model).graph.value_info
    return _cast_values(inner, TensorProto.FLOAT16)


def _cast_values(values: Iterable[onnx.ValueInfoProto], element: int) -> set[str]:
    return {v.name for v in values if v.type.tensor_type.elem_type == element}


def _halve_constant(model: onnx.ModelProto, constant: onnx.TensorProto, name: str) -> None:
    values = to_array(constant)
    finite = values[np.isfinite(values)]
    if np.abs(finite).max(initial=0.0) > _LARGEST:
        raise UnsupportedModel(
            f"constant {constant.name!r} reaches {np.abs(finite).max():.3g}, and float16 ends at "
            f"{_LARGEST:.0f}: build with --precision fp32"
        )
    model.graph.initializer.append(from_array(values.astype(np.float16), name))
