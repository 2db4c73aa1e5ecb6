"""Converts graphs to FP16, checks them for overflow, and simulates FP16 in float32."""

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

# Operators that compute in float16. `_ALWAYS_FLOAT` has exceptions for some inputs.
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
# Operator -> indices of its inputs that are always float32.
_ALWAYS_FLOAT = {"Resize": {2}}


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a normalised model that computes in float16.

    Inputs and outputs stay float32.

    Nodes after the last layer stay float32, because float16 would round coordinates above 512 to
    steps of half a pixel. Layers with a bias above 512 and operators that do not support float16
    also stay float32.

    Raises:
        UnsupportedModel: a constant exceeds the range of float16.
    """
    halved = deepcopy(model)
    rebuild(halved, _Halving(halved).nodes())
    return halved


def check_overflow(model: onnx.ModelProto, spec: PreprocessSpec, images: Path | None) -> None:
    """Check on a few images that no float16 tensor of a graph overflows.

    The check reads all inner float16 tensors. On a CPU, ONNX Runtime computes float16 layers in
    float32, and only rounds the tensors that are read. So the outputs alone would not show an
    overflow that happens on a GPU.

    Raises:
        Disagreement: a float16 tensor has NaN or infinite values.
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
    """Return a float32 graph that rounds to float16 and overflows in the same places as a GPU.

    CPU runtimes do not simulate a GPU: ONNX Runtime and OpenVINO compute a float16 graph of
    `to_half` in float32, where 100 * 1000 does not overflow. In the returned graph, each float16
    result is cast to float16 and back. The output of a DequantizeLinear is not cast, because a GPU
    multiplies the integers directly.
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
    """Adds casts between the float16 and float32 parts of a graph.

    A tensor keeps its name in the element type in which it is computed. After a cast to the other
    type, it has the name NAME/half or NAME/float. An output of the graph is an exception: it is
    always float32 under its own name.
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
        """Yield all nodes and casts in topological order.

        Float16 constants are added to the model.
        """
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
        """Return the name of a tensor in float16 (`half`) or float32, and the nodes that create it.

        The list of nodes is empty if no new cast is needed.
        """
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
    """Yield the names of layers with a bias of 512 or more, and of the nodes that follow them.

    Float16 rounds a bias of this size by up to a quarter. The other terms of the layer's sum cancel
    most of the bias, but not the rounding error. For example, u2netp has a bias of 1361. The nodes
    that read the output, e.g. activations, are included because TensorRT treats a single layer
    between two casts as a float16 layer.
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
            f"constant {constant.name!r} reaches {np.abs(finite).max():.3g}, but the maximum of "
            f"float16 is {_LARGEST:.0f}: build with --precision fp32"
        )
    model.graph.initializer.append(from_array(values.astype(np.float16), name))
