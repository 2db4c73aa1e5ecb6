"""INT8, written into a graph as QuantizeLinear and DequantizeLinear around its layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.calibration.ranges import Ranges
from fovea_engines.build.precision.encoding import Steps, encode_weight
from fovea_engines.device import WeightBits
from fovea_engines.graph.wiring import Wiring, is_depthwise, rebuild

if TYPE_CHECKING:
    import onnx


def quantisable(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the layers that gain from INT8, in the graph's order.

    Not among them are a detector's last layers, whose rounding would be read off as boxes; and
    depthwise layers, which are not computed faster in INT8, as they wait for memory, and which
    lose most: yolox_nano loses half of its mAP by them.
    """
    wiring = Wiring(model)
    head = wiring.head_layers()
    return tuple(
        node.name
        for node in wiring.layers()
        if node.name not in head
        and node.input[1] in wiring.constants
        and not is_depthwise(node, wiring.constants[node.input[1]])
    )


def quantise(
    model: onnx.ModelProto,
    ranges: Ranges,
    encoding: Encoding,
    keep_float: Collection[str] = (),
) -> onnx.ModelProto:
    """A copy of a model whose layers multiply integers.

    Each quantised layer takes its input through a Q/DQ pair and its weights, int8 per output
    channel, through a DQ. Biases, sums and activations stay float: the backend fuses what it can.

    Args:
        model: normalised, float32.
        ranges: of the tensors that layers take.
        encoding: for whom.
        keep_float: names of layers that are left as they are.
    """
    import onnx

    quantised = onnx.ModelProto()
    quantised.CopyFrom(model)
    chosen = set(quantisable(model)) - set(keep_float)
    rebuild(quantised, _nodes(quantised, ranges, encoding, chosen))
    return quantised


def _nodes(
    model: onnx.ModelProto, ranges: Ranges, encoding: Encoding, chosen: Collection[str]
) -> Iterator[onnx.NodeProto]:
    """The nodes of the quantised graph in topological order; new constants go into the model."""
    wiring = Wiring(model)
    takers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in wiring.layers():
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
    """The pair that a tensor passes on its way to the layers that take it."""
    from onnx.helper import make_node
    from onnx.numpy_helper import from_array

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
    """Put a layer's weights into int8, and give the node that brings them back."""
    from onnx.helper import make_node
    from onnx.numpy_helper import from_array, to_array

    # By the layer's name: two layers may share one tensor.
    stem = f"{layer.name}/weight"
    integers, scale = encode_weight(to_array(weight), bits)
    model.graph.initializer.append(from_array(integers, f"{stem}/quantised"))
    model.graph.initializer.append(from_array(scale, f"{stem}/scale"))
    layer.input[1] = f"{stem}/dequantised"
    return make_node(
        "DequantizeLinear",
        [f"{stem}/quantised", f"{stem}/scale"],
        [layer.input[1]],
        f"{stem}/DQ",
        axis=0,
    )
