"""Converts graphs to INT8: adds QuantizeLinear and DequantizeLinear before the layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array

from fovea_engines.backends.backend import Encoding
from fovea_engines.device import WeightBits
from fovea_engines.onnx_graph.wiring import (
    RANKING,
    Wiring,
    is_depthwise,
    output_axis,
    rebuild,
    tensors_after,
)
from fovea_engines.quantization.ranges import Ranges

# Smallest scale: 16 times the smallest positive float16. Scales are rounded up to float16, and a
# smaller scale would be rounded up by more than 1/16, which wastes a part of its range.
_SMALLEST = 2.0**-20
MAX_OF_PAIRS = 128
"""Largest sum of two weights of a channel on CPUs that add two INT8 products in 16 bits.

The largest activation is 255, and 255 * 128 is 32,640. The largest signed 16-bit value is 32,767.
"""
# Smallest side of a weight matrix for which INT8 is faster. INT8 products with 32 columns are not
# faster. INT8 products with 64 columns and 400 rows take a quarter less time.
_NARROWEST = 64
# Operators that choose rows or positions by values.
_CHOOSING = RANKING | {"GridSample"}


def quantisable(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the layers that are faster in INT8, in the order of the graph.

    These layers are convolutions, and products of tokens with weight matrices (projections). All
    other operators stay float, e.g. the attention itself. The following convolutions and
    projections also stay float:

    - the last layers before the outputs, because their rounding errors would move boxes;
    - depthwise convolutions: INT8 is not faster, because memory access limits their speed, and it
      would cost much accuracy (yolox_nano would lose half of its mAP);
    - layers after a choice of rows or positions, because rounding would change the choice (in the
      decoders of most DETRs), and the projections that decide the choice;
    - projections of joined levels: OpenVINO moves the scales of their input to the levels, and then
      rejects the product.
    """
    return tuple(node.name for node in _quantisable(model))


def _quantisable(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    wiring = Wiring(model)
    head = wiring.head_layers()
    chosen = tensors_after(model, _CHOOSING)
    layers = {
        node.name
        for node in wiring.layers()
        if node.input[1] in wiring.constants
        and not is_depthwise(node, wiring.constants[node.input[1]])
    }
    if projections := wiring.projections():
        single = _single_rows(model)
        layers |= {
            node.name
            for node in projections
            if min(wiring.constants[node.input[1]].dims) >= _NARROWEST
            and node.input[0] not in single
            and not _is_joined(wiring, node.input[0])
        }
        choices = (node for node in wiring.nodes if node.op_type in RANKING)
        ranked = wiring.last_layers({name for node in choices for name in node.input})
        layers -= ranked & {node.name for node in projections}
    return [
        node
        for node in wiring.nodes
        if node.name in layers and node.name not in head and node.input[0] not in chosen
    ]


def _is_joined(wiring: Wiring, name: str) -> bool:
    maker = wiring.maker(name)
    if maker is not None and maker.op_type == "Mul":  # a mask of the levels' edges
        maker = wiring.maker(next(one for one in maker.input if one not in wiring.constants))
    return maker is not None and maker.op_type == "Concat"


def _single_rows(model: onnx.ModelProto) -> set[str]:
    """Return the names of 2-D tensors with one row per image.

    INT8 products of such tensors are not faster, because memory access limits their speed.
    """
    batch = model.graph.input[0].type.tensor_type.shape.dim[0]
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in inferred.value_info}
    return {name for name, dims in shapes.items() if len(dims) == 2 and dims[0] == batch}


def quantise(
    model: onnx.ModelProto,
    ranges: Ranges,
    encoding: Encoding,
    keep_float: Collection[str] = (),
) -> onnx.ModelProto:
    """Return a copy of a normalised float32 model whose layers compute in INT8.

    QuantizeLinear and DequantizeLinear are added before the input of each quantised layer. Its
    weights are stored as int8, with a scale for each output channel, and a DequantizeLinear.
    Biases, sums and activation functions stay float. The runtime recognises this pattern, and
    computes it with integers.

    Args:
        model: normalised float32 model.
        ranges: ranges of the layers' inputs.
        encoding: integer type of the activations.
        keep_float: names of layers that stay float.
    """
    quantised = deepcopy(model)
    chosen = set(quantisable(model)) - set(keep_float)
    rebuild(quantised, _nodes(quantised, ranges, encoding, chosen))
    return quantised


def _nodes(
    model: onnx.ModelProto, ranges: Ranges, encoding: Encoding, chosen: Collection[str]
) -> Iterator[onnx.NodeProto]:
    """Yield the quantised graph in topological order, and add new constants to the model."""
    wiring = Wiring(model)
    takers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in wiring.nodes:
        if node.name in chosen:
            takers[node.input[0]].append(node)
    for value in model.graph.input:
        if value.name in takers:
            yield from _activation(model, value.name, ranges, encoding, takers[value.name])
    for node in wiring.nodes:
        if node.name in chosen:
            yield _weight(model, node, wiring.constants[node.input[1]], encoding.weight_bits)
        yield node
        for output in node.output:
            if output in takers:
                yield from _activation(model, output, ranges, encoding, takers[output])


def _activation(
    model: onnx.ModelProto,
    name: str,
    ranges: Ranges,
    encoding: Encoding,
    takers: list[onnx.NodeProto],
) -> Iterator[onnx.NodeProto]:
    steps = Steps.of(*ranges.tensors[name], encoding)
    scale, zero = f"{name}/scale", f"{name}/zero_point"
    integers, real = f"{name}/quantised", f"{name}/dequantised"
    model.graph.initializer.append(from_array(steps.scale, scale))
    model.graph.initializer.append(from_array(steps.zero_point, zero))
    yield make_node("QuantizeLinear", [name, scale, zero], [integers], f"{name}/Q")
    yield make_node("DequantizeLinear", [integers, scale, zero], [real], f"{name}/DQ")
    for taker in takers:
        taker.input[0] = real


def _weight(
    model: onnx.ModelProto, layer: onnx.NodeProto, weight: onnx.TensorProto, bits: WeightBits
) -> onnx.NodeProto:
    # The new tensors are named after the layer and not after the weight, because two layers may
    # share a weight.
    stem, axis = f"{layer.name}/weight", output_axis(layer)
    integers, scale = encode_weight(np.moveaxis(to_array(weight), axis, 0), bits)
    integers = np.ascontiguousarray(np.moveaxis(integers, 0, axis))
    model.graph.initializer.append(from_array(integers, f"{stem}/quantised"))
    model.graph.initializer.append(from_array(scale, f"{stem}/scale"))
    layer.input[1] = f"{stem}/dequantised"
    return make_node(
        "DequantizeLinear",
        [f"{stem}/quantised", f"{stem}/scale"],
        [layer.input[1]],
        f"{stem}/DQ",
        axis=axis,
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """The quantisation of a tensor: real value = (integer - zero_point) * scale.

    The zero point is an int8 or uint8 scalar. The scale is a float32 scalar. Float16 can hold it
    exactly, so that FP16 and FP32 graphs agree, unless it exceeds 65504.
    """

    scale: NDArray[np.float32]
    zero_point: NDArray[Any]

    @classmethod
    def of(cls, low: float, high: float, encoding: Encoding) -> Steps:
        """Return the quantisation for a range that contains zero. Zero is represented exactly."""
        if encoding is Encoding.SIGNED:
            return cls(_half_exact(max(-low, high) / 127), np.array(0, np.int8))
        scale = _half_exact((high - low) / 255)
        return cls(scale, np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8))


def encode_weight(
    weight: NDArray[np.float32], bits: WeightBits = 8
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise a weight, float32 [out, in, ...], with a scale for each output channel.

    With 7 bits, the sum of any two integers of a channel is at most `MAX_OF_PAIRS`. So a CPU that
    adds two products in 16 bits cannot overflow. If one weight of a channel is far larger than the
    others, it still uses nearly 8 bits.

    Returns:
        The integers, int8 with the shape of the weight, from -127 to 127, and the scales, float32
        [out].
    """
    rows = weight.reshape(len(weight), -1)
    # The exact sum of two weights is at most 127 steps. Each weight may be rounded up by half a
    # step, so the sum of the integers is at most 128.
    largest = pair_sums(rows) if bits == 7 else np.abs(rows).max(axis=1)
    scale = _half_exact(largest / 127)
    steps = np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1)))
    return np.clip(steps, -127, 127).astype(np.int8), scale


def pair_sums(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return for each row of [n, k] the largest magnitude of a number or a sum of two numbers.

    The result is [n].
    """
    count = min(rows.shape[1], 2)
    ordered = np.sort(rows, axis=1)
    sums = np.stack([ordered[:, -count:].sum(axis=1), -ordered[:, :count].sum(axis=1)])
    largest: NDArray[np.float32] = np.maximum(sums.max(axis=0), np.abs(rows).max(axis=1))
    return largest


def _half_exact(scale: Any) -> NDArray[np.float32]:
    """Return scales rounded up to float16, as float32.

    Rounding down would clip the end of the range.
    """
    wanted = np.maximum(np.asarray(scale, np.float32), np.float32(_SMALLEST))
    with np.errstate(over="ignore"):
        half = wanted.astype(np.float16)
        half = np.where(half < wanted, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(np.isfinite(half), half, wanted).astype(np.float32)
