"""Networks whose outputs are no numbers on dark images, on every runtime or on one of them."""

import numpy as np
import onnx
from onnx import helper
from tests.engines.tiny import CHANNELS, SIZE, constant, save, tiny_detector, tiny_network

CLASSIFIER = {"task": "classify", "names": "{0: 'dark', 1: 'bright'}"}
SEMANTIC = {"task": "semantic", "names": str(dict(enumerate("abcdefgh")))}


def fragile_detector(path, *, outputs=None, runtime=None):
    """Write `tiny_detector`, broken on dark images."""
    return broken(tiny_detector(path), path, outputs=outputs, runtime=runtime)


def fragile_classifier(path, *, runtime=None):
    """Write a softmax over the mean brightness, broken on dark images."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["output0"], axis=1),
    ]
    weights = [constant("weights", np.array([[-1, 1]] * 3, np.float32))]
    shapes = [("images", ["batch", 3, SIZE, SIZE])], [("output0", ["batch", 2])]
    return broken(save(path, nodes, *shapes, weights, metadata=CLASSIFIER), path, runtime=runtime)


def fragile_map(path, *, runtime=None):
    """Write a map of 8 classes, broken on dark images."""
    model = onnx.load(tiny_network(path))
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == CHANNELS == 8
    helper.set_model_props(model, SEMANTIC)
    onnx.save(model, path)
    return broken(path, path, runtime=runtime)


def broken(source, path, *, outputs=None, runtime=None):
    """Multiply outputs of a model, by default all, by 1 and on dark images by NaN.

    Of the runtime "onnxruntime" alone: it divides by zero to normalise a channel that is zero.
    """
    model = onnx.load(source)
    graph, image = model.graph, model.graph.input[0].name
    f = f"f{len(graph.node)}"
    if runtime == "onnxruntime":
        nodes = [helper.make_node("MeanVarianceNormalization", [image], [f"{f}/a"], axes=[2, 3])]
    else:
        nodes = [
            helper.make_node("ReduceMean", [image], [f"{f}/mean"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Sub", [f"{f}/mean", f"{f}/dark"], [f"{f}/over"]),
            helper.make_node("Sqrt", [f"{f}/over"], [f"{f}/a"]),
        ]
    nodes += [
        helper.make_node("ReduceMean", [f"{f}/a"], [f"{f}/b"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", [f"{f}/b", f"{f}/small"], [f"{f}/c"]),
        helper.make_node("Add", [f"{f}/c", f"{f}/one"], [f"{f}/factor"]),
    ]
    graph.initializer.extend(
        constant(f"{f}/{name}", np.float32(value))
        for name, value in (("dark", 0.1), ("small", 1e-7), ("one", 1))
    )
    for output in [o for o in graph.output if outputs is None or o.name in outputs]:
        name, rank = output.name, len(output.type.tensor_type.shape.dim)
        for node in graph.node:
            node.output[:] = [f"{each}/sound" if each == name else each for each in node.output]
        graph.initializer.append(constant(f"{name}/rank", np.array([0] + [1] * (rank - 1))))
        nodes += [
            helper.make_node("Reshape", [f"{f}/factor", f"{name}/rank"], [f"{name}/factor"]),
            helper.make_node("Mul", [f"{name}/sound", f"{name}/factor"], [name]),
        ]
    graph.node.extend(nodes)
    onnx.save(model, path)
    return path
