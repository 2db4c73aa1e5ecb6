"""INT8 in a graph: steps that fit, and Q/DQ pairs around the layers that gain, nowhere else."""

import re
from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tests.conftest import SHARED
from tests.engines.real import DETECTORS, OTHERS, bus, error, prepared, ranges, run
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.backends.registry import get_backend, open_session
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.evaluation.samples import image_files
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.wiring import Wiring, is_depthwise, tensors_after
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import Images, calibrate
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import Steps, encode_weight, quantisable, quantise
from fovea_engines.quantization.quantisation import validate
from fovea_engines.quantization.ranges import Origin, Ranges
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow

IMAGE = [1, 4, 8, 8]
REAL = pytest.mark.real
ENCODINGS = pytest.mark.parametrize("encoding", Encoding)
LARGEST = 65504.0
FINEST = 2.0**-20
# The largest range whose scale fits float16 is 127 times as far.
ENDS = st.floats(0, 127 * LARGEST, allow_subnormal=False)


def there_and_back(values: np.ndarray, steps: Steps) -> np.ndarray:
    """What QuantizeLinear and DequantizeLinear make of values, in double precision."""
    scale, zero = float(steps.scale), int(steps.zero_point)
    limits = np.iinfo(steps.zero_point.dtype)
    return (np.clip(np.rint(values / scale) + zero, limits.min, limits.max) - zero) * scale


@ENCODINGS
@given(low=ENDS, high=ENDS, shares=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_steps_cover_a_range_hold_zero_and_are_exact_in_float16(encoding, low, high, shares):
    steps = Steps.of(-low, high, encoding)
    values = np.array([-low, 0.0, high, *(-low + share * (low + high) for share in shares)])
    moved = np.abs(there_and_back(values, steps) - values)
    assert (moved <= float(steps.scale) * (0.5 + 1e-4)).all()
    assert moved[1] == 0
    assert (steps.scale.dtype, steps.scale.shape) == (np.float32, ())
    assert np.float32(np.float16(steps.scale)) == steps.scale
    signed = encoding is Encoding.SIGNED
    least = max(low, high) / 127 if signed else (high + low) / 255
    # A 1,024th apart, as float16 is; near zero, where it has fewer digits, a sixteenth.
    waste = 2**-10 if least >= 2**-14 else 2**-4
    assert least * (1 - 1e-6) <= steps.scale <= max(least * (1 + waste), FINEST)
    assert steps.zero_point.dtype == (np.int8 if signed else np.uint8)
    assert steps.zero_point == 0 or (low > 0 and not signed)


@ENCODINGS
def test_ranges_of_nothing_and_beyond_float16_have_steps(encoding):
    steps = Steps.of(0.0, 0.0, encoding)
    assert (steps.scale, steps.zero_point) == (FINEST, 0)
    for high in (127 * 65505.0, 1e9, 3e38):
        steps = Steps.of(0.0, high, encoding)
        assert there_and_back(np.array(high), steps) == pytest.approx(high, rel=2**-10)
    integers, scale = encode_weight(np.array([[[[1e38]]], [[[1.0]]]], np.float32))
    assert np.isfinite(scale).all()
    assert integers.ravel().tolist() == [127, 127]


def largest_sum(channel: np.ndarray) -> int:
    """Of the products of two weights with the largest of uint8."""
    return max(abs(255 * int(a) + 255 * int(b)) for a, b in combinations(channel, 2))


@given(
    st.lists(st.integers(-30, 20), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([7, 8]),
    st.booleans(),
)
def test_weights_are_symmetric_in_each_channel(exponents, seed, bits, lone):
    random = np.random.default_rng(seed)
    sizes = 2.0 ** np.array(exponents)
    weight = (random.normal(size=(len(sizes), 4, 3, 3)) * sizes[:, None, None, None]).astype("f4")
    weight[random.random(len(sizes)) < 0.2] = 0.0
    if lone:
        weight[:, 1:] = weight[:, :, 1:] = weight[..., 1:] = 0
    # With 7 bits the sum of the two largest decides: a channel has 63 steps at least, and 127
    # where one weight stands alone.
    least = 63 if bits == 7 and not lone else 127
    integers, scale = encode_weight(weight, bits)
    assert (integers.dtype, integers.shape) == (np.int8, weight.shape)
    assert (scale.dtype, scale.shape) == (np.float32, sizes.shape)
    assert (np.float16(scale) == scale).all()
    assert np.abs(integers.astype(int)).max(initial=0) <= 127
    each = scale[:, None, None, None]
    assert (np.abs(integers * each - weight) <= each * (0.5 + 1e-4)).all()
    top = np.abs(integers.astype(int)).max(axis=(1, 2, 3))
    largest = np.abs(weight).max(axis=(1, 2, 3))
    # No channel gives away more than a sixteenth of the integers.
    assert (top[largest >= 127 * FINEST] >= least * 15 // 16).all()
    assert (top[largest == 0] == 0).all()
    # CPUs without VNNI add two products in 16 bits.
    assert bits == 8 or all(largest_sum(channel.ravel()) < 2**15 for channel in integers)


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
@pytest.mark.parametrize("name", [*DETECTORS, *OTHERS])
def test_exactly_the_layers_that_gain_multiply_integers(shared, name):
    graph, found = prepared(shared, name).graph, ranges(shared, name)
    before, chosen = Wiring(graph), set(quantisable(graph))
    convolutions = {node.name for node in before.layers()}
    depthwise = {
        node.name for node in before.layers() if is_depthwise(node, before.constants[node.input[1]])
    }
    assert convolutions - chosen == before.head_layers() & convolutions | depthwise
    assert bool(depthwise) == (name in {"mobilenetv2", "yolox_nano", "yolov10n"})
    graphs = {encoding: quantise(graph, found, encoding) for encoding in Encoding}
    for model in graphs.values():
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
        assert len(after.nodes) == len(before.nodes) + 2 * len(inputs) + len(chosen)
    # Only the signed graph is for TensorRT, which takes no int32 either.
    validate(graphs[Encoding.SIGNED])
    first = re.escape(f"{graph.graph.input[0].name}/Q has the type uint8")
    with pytest.raises(UnsupportedModel, match=rf"{first}.*\({2 * len(inputs)} faults in all\)"):
        validate(graphs[Encoding.UNSIGNED])


@REAL
@pytest.mark.parametrize("name", ["yolov5n", "mobilenetv2"])
def test_the_same_graph_gives_the_same_bytes(shared, name):
    first, again = (
        quantise(normalise(load(path).proto), ranges(shared, name), Encoding.SIGNED)
        for path in [shared / "models" / f"{name}.onnx"] * 2
    )
    assert first.SerializeToString() == again.SerializeToString()


@REAL
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


FILES = ("rtdetrv2", "dfine", "rfdetr")
BODIES = {"rtdetrv2": 8, "dfine": 6, "rfdetr": 3}
"""Projections of tokens, before any choice of queries; the backbone of this RF-DETR is narrow."""


@cache
def attentive(name, encoding=Encoding.SIGNED) -> onnx.ModelProto:
    """As a build writes it, by default for TensorRT, with the ranges of one image."""
    source = SHARED / "models" / "heads" / f"{name}.onnx"
    if not source.is_file():
        pytest.skip(f"the collected models are absent: {source} is not there")
    data = SHARED / "data" / "coco64" / "calibration"
    model = prepare(BuildPlan(source, "m", SHARED, images=data, preprocess={}), Progress())
    images = Images(image_files(data, 1), model.preprocess, "")
    ranges = calibrate(model.graph, images, Origin("", "", "", "minmax"), Progress())
    return quantise(model.graph, ranges, encoding)


def takers(graph):
    """Return the nodes that compute with integers."""
    integers = {one for n in graph.node if n.op_type == "DequantizeLinear" for one in n.output}
    return [n for n in graph.node if not integers.isdisjoint(n.input)]


@REAL
@pytest.mark.parametrize("name", FILES)
def test_attention_and_what_comes_after_a_choice_stay_float(name):
    graph = attentive(name).graph
    integers = {one for n in graph.node if n.op_type == "DequantizeLinear" for one in n.output}
    found = Counter(node.op_type for node in takers(graph))
    assert found.keys() <= {"Conv", "MatMul", "Gemm"}
    assert found["MatMul"] + found["Gemm"] == BODIES[name]
    assert all(set(node.input[:2]) <= integers for node in takers(graph))
    choices = {name for node in graph.node if node.op_type == "TopK" for name in node.input}
    scores = Wiring(attentive(name)).last_layers(choices)
    assert scores
    assert scores.isdisjoint(node.name for node in takers(graph) if node.op_type != "Conv")
    assert tensors_after(attentive(name), {"TopK", "GridSample"}).isdisjoint(integers)


@REAL
def test_openvino_takes_levels_that_are_joined(tmp_path):
    """It fails where tokens of several levels are quantised after they are joined."""
    graph = attentive("rtdetrv2", Encoding.UNSIGNED)
    file = get_backend("openvino").compile(graph.SerializeToString(), tmp_path)
    row = np.zeros((1, 3, 320, 320), np.float32)
    with open_session("openvino", file, max_batch=1) as session:
        found = session.infer({graph.graph.input[0].name: row})
    assert all(np.isfinite(one).all() for one in found.values())


@REAL
@pytest.mark.parametrize("name", FILES)
def test_tensorrt_takes_them(name):
    from tests.engines.rtx import compile_graph

    found = compile_graph(to_half(attentive(name)), "SM89")
    assert found.engine, found.messages
    convolutions = [node for node in takers(attentive(name).graph) if node.op_type == "Conv"]
    assert found.convolutions["int8"] == len(convolutions)


@REAL
def test_a_top_k_beyond_tensorrts_is_named():
    """It sorts 3840 values at most, and a build says so before it is served."""
    from tests.engines.rtx import compile_graph

    image = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 5000])
    best = onnx.helper.make_tensor_value_info("best", onnx.TensorProto.FLOAT, [1, 4000])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("TopK", ["image", "k"], ["best", "places"], "queries")],
        "sorting",
        [image],
        [best],
        [onnx.helper.make_tensor("k", onnx.TensorProto.INT64, [1], [4000])],
    )
    opset = [onnx.helper.make_opsetid("", 19)]
    found = compile_graph(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), "SM89")
    assert found.plan is None
    assert "queries: K exceeds the maximum value allowed (3840)" in found.messages[0]
