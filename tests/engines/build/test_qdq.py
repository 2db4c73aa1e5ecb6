"""Q/DQ nodes: on the inputs and weights of the layers that gain, and nowhere else."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.real import DETECTORS, OTHERS, bus, error, prepared, ranges, run
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.wiring import Wiring, is_depthwise
from fovea_engines.quantization.qdq import quantisable, quantise
from fovea_engines.quantization.quantisation import validate
from fovea_engines.quantization.ranges import Origin, Ranges
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.real

IMAGE = [1, 4, 8, 8]
REAL = pytest.mark.parametrize("name", [*DETECTORS, *OTHERS])
ENCODINGS = pytest.mark.parametrize("encoding", Encoding)


def made_by(wiring: Wiring, tensor: str) -> str:
    node = wiring.producer.get(tensor)
    return "" if node is None else node.op_type


def whole(values) -> Ranges:
    """Ranges of every name, of what `values` are."""
    low, high = float(min(values.min(), 0)), float(max(values.max(), 0))
    names = ("images", "a", "b", "c")
    return Ranges(Origin("", "", "", "minmax"), 1, dict.fromkeys(names, (low, high)))


@pytest.fixture
def siblings(tmp_path) -> onnx.ModelProto:
    """Three layers on one input, two of them with one weight; a depthwise one; and a head."""
    random = np.random.default_rng(0)
    shared, own, last = (random.normal(size=(4, 4, 1, 1)).astype(np.float32) for _ in range(3))
    nodes = [
        helper.make_node("Conv", ["images", "shared", "bias"], ["one"], "one"),
        helper.make_node("Conv", ["images", "shared"], ["two"], "two"),
        helper.make_node("Conv", ["images", "own"], ["three"], "three"),
        helper.make_node("Sum", ["one", "two", "three"], ["a"], "sum"),
        helper.make_node("Conv", ["a", "each"], ["b"], "depthwise", group=4),
        helper.make_node("Conv", ["b", "last"], ["out"], "head"),
    ]
    weights = [
        constant("shared", shared), constant("own", own), constant("last", last),
        constant("bias", np.ones(4, np.float32)),
        constant("each", random.normal(size=(4, 1, 1, 1)).astype(np.float32)),
    ]  # fmt: skip
    return onnx.load(
        save(tmp_path / "m.onnx", nodes, [("images", IMAGE)], [("out", IMAGE)], weights, opset=19)
    )


@ENCODINGS
def test_layers_that_share_an_input_share_its_pair(siblings, encoding):
    row = np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)
    assert quantisable(siblings) == ("one", "two", "three")
    before = siblings.SerializeToString()
    model = quantise(siblings, whole(row), encoding)
    assert siblings.SerializeToString() == before
    onnx.checker.check_model(model, full_check=True)
    types = [node.op_type for node in model.graph.node]
    assert (types.count("QuantizeLinear"), types.count("DequantizeLinear")) == (1, 4)
    assert types[:2] == ["QuantizeLinear", "DequantizeLinear"]
    assert "shared" not in {weight.name for weight in model.graph.initializer}
    [want], [have] = run(siblings, row), run(model, row)
    assert 0 < error(have, want) < 0.03


@ENCODINGS
def test_what_is_kept_in_float_is_as_it_was(siblings, encoding):
    row = np.ones(IMAGE, np.float32)
    kept = quantise(siblings, whole(row), encoding, ("two", "three"))
    layers = {node.name: node for node in kept.graph.node}
    assert list(layers["two"].input) == ["images", "shared"]
    assert list(layers["three"].input) == ["images", "own"]
    assert list(layers["one"].input)[::2] == ["images/dequantised", "bias"]
    assert quantise(siblings, whole(row), encoding, ("one", "two", "three")) == siblings


@pytest.fixture
def classifier(tmp_path) -> onnx.ModelProto:
    """A layer, tokens with two projections, one of each operator; their mean; and two layers."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["images", "patch"], ["a"], "patches"),
        helper.make_node("Reshape", ["a", "rows"], ["r"], "rows"),
        helper.make_node("Transpose", ["r"], ["b"], "transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["b", "wide"], ["c"], "wide"),
        helper.make_node("Reshape", ["c", "flat"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "tall", "bias"], ["g"], "tall", transB=1),
        helper.make_node("ReduceMean", ["g", "first"], ["m"], "mean", keepdims=1),
        helper.make_node("Gemm", ["m", "own", "bias"], ["n"], "single"),
        helper.make_node("Gemm", ["n", "narrow"], ["out"], "head"),
    ]
    shapes = {
        "patch": (64, 4, 1, 1),
        "wide": (64, 96),
        "tall": (64, 96),
        "own": (64, 64),
        "narrow": (64, 8),
    }
    weights = [
        constant("rows", np.array([1, 64, 64])), constant("flat", np.array([64, 96])),
        constant("first", np.array([0])), constant("bias", np.ones(64, np.float32)),
    ]  # fmt: skip
    for name, shape in shapes.items():
        weights.append(constant(name, random.normal(size=shape).astype(np.float32)))
    file = save(
        tmp_path / "c.onnx", nodes, [("images", IMAGE)], [("out", [1, 8])], weights, opset=19
    )
    return onnx.load(file)


@ENCODINGS
def test_projections_of_tokens_have_a_scale_for_each_column(classifier, encoding):
    """One row an image waits for memory, and the last layer is the result: both stay float."""
    row = np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)
    assert quantisable(classifier) == ("patches", "wide", "tall")
    found = dict(
        zip("bf", ReferenceSession(classifier, ["b", "f"]).run(["b", "f"], row), strict=True)
    )
    measured = {name: (float(v.min()), float(v.max())) for name, v in found.items()}
    known = Ranges(Origin("", "", "", "minmax"), 1, {**whole(row).tensors, **measured})
    model = quantise(classifier, known, encoding)
    onnx.checker.check_model(model, full_check=True)
    weights = {
        weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer
    }
    axes = {
        node.name: node.attribute[0].i
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and "/weight" in node.name
    }
    assert axes == {"patches/weight/DQ": 0, "wide/weight/DQ": 1, "tall/weight/DQ": 0}
    assert weights["wide/weight/scale"].shape == (96,)
    assert weights["tall/weight/scale"].shape == (64,)
    assert weights["wide/weight/quantised"].shape == (64, 96)
    reached = np.abs(weights["wide/weight/quantised"]).max(axis=0)
    assert (reached >= 2 ** (encoding.weight_bits - 1) - 2).all()
    # As GPUs compute it: a CPU without VNNI overflows where both are signed, with 8 bits.
    [want] = run(classifier, row)
    [have] = ReferenceSession(model, ["out"]).run(["out"], row)
    assert 0 < error(have, want) < 0.03


@REAL
@ENCODINGS
def test_exactly_the_layers_that_gain_multiply_integers(shared, name, encoding):
    graph = prepared(shared, name).graph
    before, chosen = Wiring(graph), set(quantisable(graph))
    model = quantise(graph, ranges(shared, name), encoding)
    onnx.checker.check_model(model, full_check=True)
    after = Wiring(model)
    inputs = set()
    for old, new in zip(before.layers(), after.layers(), strict=True):
        assert old.name == new.name
        assert list(old.input)[2:] == list(new.input)[2:]  # biases
        if old.name in chosen:
            inputs.add(old.input[0])
            assert made_by(after, new.input[0]) == made_by(after, new.input[1])
            assert made_by(after, new.input[0]) == "DequantizeLinear"
        else:
            assert old.input == new.input
    pairs = [node for node in after.nodes if node.op_type == "QuantizeLinear"]
    assert {node.input[0] for node in pairs} == inputs
    assert len(pairs) == len(inputs)
    assert TensorProto.INT32 not in {
        after.constants[node.input[0]].data_type
        for node in after.nodes
        if node.op_type == "DequantizeLinear" and node.input[0] in after.constants
    }
    assert len(after.nodes) == len(before.nodes) + 2 * len(inputs) + len(chosen)


@REAL
def test_heads_and_depthwise_layers_are_left_alone(shared, name):
    graph = prepared(shared, name).graph
    wiring = Wiring(graph)
    convolutions = {node.name for node in wiring.layers()}
    rest = convolutions - set(quantisable(graph))
    depthwise = {
        node.name for node in wiring.layers() if is_depthwise(node, wiring.constants[node.input[1]])
    }
    assert rest == wiring.head_layers() & convolutions | depthwise
    assert bool(depthwise) == (name in {"mobilenetv2", "yolox_nano", "yolov10n"})


@REAL
def test_only_the_signed_graph_is_for_tensorrt(shared, name):
    graph, found = prepared(shared, name).graph, ranges(shared, name)
    validate(quantise(graph, found, Encoding.SIGNED))
    unsigned = quantise(graph, found, Encoding.UNSIGNED)
    pairs = 2 * sum(node.op_type == "QuantizeLinear" for node in unsigned.graph.node)
    first = re.escape(f"{graph.graph.input[0].name}/Q is uint8, which is read as int8 and clipped")
    with pytest.raises(
        UnsupportedModel, match=rf"cannot take .*{first}.*\({pairs} faults in all\)"
    ):
        validate(unsigned)


@pytest.mark.parametrize("name", ["yolov5n", "mobilenetv2"])
def test_the_same_graph_gives_the_same_bytes(shared, name):
    first, again = (
        quantise(normalise(load(path).proto), ranges(shared, name), Encoding.SIGNED)
        for path in [shared / "models" / f"{name}.onnx"] * 2
    )
    assert first.SerializeToString() == again.SerializeToString()


@ENCODINGS
def test_a_runtime_quantises_as_the_ranges_say(shared, encoding):
    """What ONNX Runtime makes of the image is the image in steps."""
    model = quantise(prepared(shared, "yolov5n").graph, ranges(shared, "yolov5n"), encoding)
    row = bus(shared, "yolov5n")
    [pair] = [node for node in model.graph.node if node.name == "images/Q"]
    model.graph.output.add(name="images/dequantised")
    *_, seen = run(model, row)
    constants = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    scale = constants[pair.input[1]]
    assert scale < 1 / (100 if encoding is Encoding.SIGNED else 200)
    assert np.abs(seen - row).max() <= scale * 0.5001
    assert (
        0 < len(np.unique(np.rint(seen / scale))) <= (128 if encoding is Encoding.SIGNED else 256)
    )
