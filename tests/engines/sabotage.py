"""Ways to spoil a model, and to hide what it is called."""

import random

import numpy as np
import onnx
from onnx import helper, numpy_helper


def scale_weight(model: onnx.ModelProto, conv: int, factor: float = 1.5) -> str:
    """Multiply the weight of one convolution; the tensor that is wrong then."""
    node = [node for node in model.graph.node if node.op_type == "Conv"][conv]
    [weight] = (w for w in model.graph.initializer if w.name == node.input[1])
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(values * values.dtype.type(factor), weight.name))
    return node.output[0]


def plant_outlier(model: onnx.ModelProto, conv: int, factor: float = 1000.0) -> str:
    """Let one channel between two convolutions be much larger than the others.

    Float32 computes the same as before; in INT8 the other channels drown.

    Returns:
        The name of the layer that takes the channel.
    """
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    weights = {w.name: w for w in model.graph.initializer}
    for node, change in ((convs[conv], factor), (convs[conv + 1], 1 / factor)):
        weight = weights[node.input[1]]
        values = numpy_helper.to_array(weight).copy()
        if node is convs[conv]:
            values[0] *= change
        else:
            values[:, 0] *= change
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return convs[conv + 1].name


def swap_columns(model: onnx.ModelProto, one: int, other: int) -> None:
    """Let two columns of the first output, such as the scores of two classes, change places."""
    [output, *_] = model.graph.output
    shape = [size.dim_value for size in output.type.tensor_type.shape.dim]
    axis = shape.index(min(shape[1:]))
    order = np.arange(shape[axis])
    order[[one, other]] = other, one
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == output.name:
                node.output[i] = "before"
    model.graph.initializer.append(numpy_helper.from_array(order, "order"))
    model.graph.node.append(
        helper.make_node("Gather", ["before", "order"], [output.name], axis=axis)
    )


def swap_activation(model: onnx.ModelProto, number: int, op: str, other: str) -> str:
    """Put another operator in the place of one; the tensor that is wrong then."""
    node = [node for node in model.graph.node if node.op_type == op][number]
    node.op_type = other
    del node.input[1:]
    return node.output[0]


def scramble(model: onnx.ModelProto) -> dict[str, str]:
    """Rename every tensor and node and list the nodes in another order; old names to new."""
    rng = random.Random(0)
    names = {"": ""}
    graph = model.graph
    for value in [*graph.input, *graph.output, *graph.initializer]:
        value.name = names.setdefault(value.name, f"t{rng.getrandbits(32):08x}")
    for node in graph.node:
        node.name = f"n{rng.getrandbits(32):08x}"
        for field in (node.input, node.output):
            new = [names.setdefault(name, f"t{rng.getrandbits(32):08x}") for name in field]
            del field[:]
            field.extend(new)
    del graph.value_info[:]
    shuffle(model, rng)
    return names


def shuffle(model: onnx.ModelProto, rng: random.Random) -> None:
    """List the nodes in another topological order."""
    graph = model.graph
    known = {"", *(value.name for value in [*graph.input, *graph.initializer])}
    left = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    while left:
        node = rng.choice([node for node in left if known.issuperset(node.input)])
        left.remove(node)
        known.update(node.output)
        graph.node.append(node)
