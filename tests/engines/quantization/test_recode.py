"""A model that came quantised keeps its scales, in the encoding and the bits of its runtime."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.engines.noting import Noting
from tests.engines.qat import quantised_in_training
from tests.engines.quantization.test_qdq import largest_sum
from tests.engines.real import bus, error, prepared, ranges, run
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.backends.registry import CPU_BACKENDS, get_backend, open_session
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import int8_saturates
from fovea_engines.engine import Engine
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.quantization.half import round_to_half, to_half
from fovea_engines.quantization.qdq import quantisable, quantise
from fovea_engines.quantization.quantisation import validate
from fovea_engines.quantization.recode import narrow_weights, quantised_share, recode
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.options import BuilderOptions
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.slow


SHAPE = [1, 3, 8, 8]
IMAGE = [1, 8, 16, 16]
LEFT_OUT = 4
ZERO = np.int8(0)


def counts(model: onnx.ModelProto) -> Counter:
    return Counter(node.op_type for node in model.graph.node)


def zero_points(model: onnx.ModelProto) -> Counter:
    """Type and value of the zero points of activations, by how many pairs have them."""
    values = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    pairs = [
        n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in values
    ]
    return Counter((values[n.input[2]].dtype.name, int(values[n.input[2]])) for n in pairs)


@pytest.fixture
def eight_bits(monkeypatch):
    """As on a CPU that adds products in 32 bits."""
    monkeypatch.setattr("fovea_engines.backends.backend.int8_saturates", lambda: False)


@pytest.fixture(scope="module")
def trained(shared, tmp_path_factory):
    """YOLOv5n with 53 of its 60 layers in int8."""
    graph = prepared(shared, "yolov5n").graph
    layers = quantisable(graph)[:-LEFT_OUT]
    model = quantised_in_training(graph, ranges(shared, "yolov5n"), layers)
    onnx.checker.check_model(model, full_check=True)
    path = tmp_path_factory.mktemp("qat") / "qat.onnx"
    onnx.save(model, path)
    return path


def pair(name: str, zero: str = "zero") -> list[onnx.NodeProto]:
    return [
        helper.make_node(
            "QuantizeLinear", [name, "scale", *zero.split()], [f"{name}q"], f"{name}Q"
        ),
        helper.make_node(
            "DequantizeLinear", [f"{name}q", "scale", *zero.split()], [f"{name}d"], f"{name}DQ"
        ),
    ]


def network(path, nodes, zero=ZERO) -> onnx.ModelProto:
    values = {"scale": np.float32(0.02), "zero": zero, "w": np.ones((3, 3, 1, 1), np.float32)}
    used = {name for node in nodes for name in node.input}
    constants = [constant(k, v) for k, v in values.items() if k in used]
    path = save(path, nodes, [("images", SHAPE)], [("out", SHAPE)], constants, opset=19)
    return onnx.load(path)


@pytest.mark.real
@pytest.mark.usefixtures("eight_bits")
def test_both_encodings_compute_what_the_exporter_meant(shared, trained):
    source, row = onnx.load(trained), bus(shared, "yolov5n")
    [want] = run(source, row)
    [plain] = run(prepared(shared, "yolov5n").graph, row)
    graph = normalise(load(trained).proto)
    # No quantised weight is folded, and only layers that it left out could be quantised.
    before, after = counts(source), counts(graph)
    pairs = ("QuantizeLinear", "DequantizeLinear", "Conv")
    assert [after[op] for op in pairs] == [before[op] for op in pairs]
    assert quantised_share(graph) == (53, 60)
    assert quantisable(graph) == quantisable(prepared(shared, "yolov5n").graph)[-LEFT_OUT:]
    signed, unsigned = (recode(graph, encoding) for encoding in Encoding)
    [(kind, pairs)] = zero_points(signed).items()
    assert kind == ("int8", 0)
    assert zero_points(unsigned) == {("uint8", 128): pairs}
    validate(signed)
    for model in (signed, unsigned, recode(unsigned, Encoding.SIGNED)):
        onnx.checker.check_model(model, full_check=True)
        assert error(run(model, row)[0], want) < 1e-3
    for_tensorrt = to_half(signed)
    onnx.checker.check_model(for_tensorrt, full_check=True)
    validate(for_tensorrt)
    # Scales are the exporter's own and no float16, so some values fall into the next step.
    assert error(run(round_to_half(for_tensorrt), row)[0], want) < 0.5 * error(plain, want)


@pytest.mark.real
def test_it_is_built_as_it_is_and_serves_the_same(shared, trained, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    plan = BuildPlan(trained, "qat", tmp_path / "r", images=tmp_path / "images")
    progress = Noting()
    with pytest.raises(UnsupportedModel):
        build(replace(plan, precision="fp16"))
    card = build(plan, progress)
    assert any("53 of 60 layers are INT8" in note for note in progress.notes)
    assert (card.precision, card.calibration, card.backend) == ("int8", None, "openvino")
    row = bus(shared, "yolov5n")
    with Engine.open(tmp_path / "r" / "qat" / "1") as engine:
        have = engine.session.infer({"images": row})["output0"]
    [want] = run(onnx.load(trained), row)
    # OpenVINO computes the file itself, with its signed activations, .1 off.
    # In 7 bits, weights are rounded again: that alone is .021.
    assert error(have, want) < (0.02 if card.weight_bits == 8 else 0.025)


def conv(source: str, result: str, name: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [source, "w"], [result], name)


@pytest.mark.parametrize("encoding", Encoding)
def test_integers_around_the_middle_get_the_other_zero_point(tmp_path, encoding):
    """Pairs may share one, and may leave it out where it is zero."""
    quantised, real = pair("b")
    del real.input[2]
    nodes = [
        *pair("images"), conv("imagesd", "a", "one"), *pair("a"), conv("ad", "b", "two"),
        quantised, real, conv("bd", "out", "three"),
    ]  # fmt: skip
    model = network(tmp_path / "m.onnx", nodes)
    before = model.SerializeToString()
    recoded = recode(model, encoding)
    assert model.SerializeToString() == before
    onnx.checker.check_model(recoded, full_check=True)
    kind = ("int8", 0) if encoding is Encoding.SIGNED else ("uint8", 128)
    assert zero_points(recoded) == {kind: 3}
    row = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_array_equal(run(recoded, row)[0], run(model, row)[0])


@pytest.mark.parametrize("encoding", Encoding)
def test_what_has_no_counterpart_stays(tmp_path, encoding):
    nodes = [*pair("images"), conv("imagesd", "out", "one")]
    for zero in (np.uint8(0), np.uint8(100), np.int8(-128), np.int8(5)):
        model = network(tmp_path / "m.onnx", nodes, zero)
        assert recode(model, encoding) == model
    # A MaxPool over int8 would find other values in uint8 with another zero point.
    quantised, real = pair("images")
    real.input[0] = "pooled"
    pool = helper.make_node("MaxPool", ["imagesq"], ["pooled"], "pool", kernel_shape=[1, 1])
    model = network(tmp_path / "m.onnx", [quantised, pool, real, conv("imagesd", "out", "one")])
    assert recode(model, encoding) == model


@pytest.mark.parametrize("zero", ["", "computed"])
def test_a_pair_without_a_constant_zero_point_is_refused(tmp_path, zero):
    nodes = [*pair("images", zero), conv("imagesd", "out", "one")]
    if zero:
        top = helper.make_node("ReduceMax", ["images"], ["top"], "top", keepdims=0)
        nodes = [top, helper.make_node("Cast", ["top"], ["computed"], "cast", to=3), *nodes]
    with pytest.raises(UnsupportedModel, match="imagesQ"):
        recode(network(tmp_path / "m.onnx", nodes), Encoding.UNSIGNED)


@pytest.mark.real
@pytest.mark.usefixtures("eight_bits")
@pytest.mark.parametrize("encoding", Encoding)
def test_what_fovea_wrote_itself_can_be_read_again(shared, encoding):
    """Its signed file is a quantised model like any other."""
    graph, found = prepared(shared, "mobilenetv2").graph, ranges(shared, "mobilenetv2")
    signed = quantise(graph, found, Encoding.SIGNED)
    again = recode(normalise(onnx.ModelProto.FromString(signed.SerializeToString())), encoding)
    row = bus(shared, "mobilenetv2")
    assert quantised_share(again) == (34, 52)
    assert error(run(again, row)[0], run(signed, row)[0]) < 1e-3


def exported(path, weight, scale, *, zero=0, quantised=True, bias=None) -> onnx.ModelProto:
    """One convolution as exporters write it, its result quantised so that runtimes fuse it."""
    scale = np.asarray(scale, np.float32)
    names = ["w", "ws", "wz"]
    values = {
        "s": np.float32(1 / 255), "z": np.uint8(0), "ws": scale,
        "wz": np.full(scale.shape, zero, np.int8), "os": np.float32(0.02), "oz": np.uint8(128),
        "w": weight if quantised else (weight * scale.reshape(-1, 1, 1, 1)).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["images", "s", "z"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "DQ"),
    ]
    if not quantised:
        nodes.append(helper.make_node("QuantizeLinear", names, ["wq"], "wQ", axis=0))
        names[0] = "wq"
    nodes.append(helper.make_node("DequantizeLinear", names, ["wd"], "wDQ", axis=0))
    inputs = ["d", "wd"]
    if bias is not None:
        values |= {"b": bias, "bs": values["s"] * scale, "bz": np.zeros(scale.shape, np.int32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], "bDQ", axis=0))
        inputs.append("bd")
    nodes += [
        helper.make_node("Conv", inputs, ["y"], "conv"),
        helper.make_node("QuantizeLinear", ["y", "os", "oz"], ["yq"], "yQ"),
        helper.make_node("DequantizeLinear", ["yq", "os", "oz"], ["out"], "yDQ"),
    ]
    weights = [constant(name, value) for name, value in values.items()]
    out = [1, len(weight), 16, 16]
    return onnx.load(save(path, nodes, [("images", IMAGE)], [("out", out)], weights, opset=13))


def weights_of(model: onnx.ModelProto) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales that the layer "conv" multiplies with."""
    values = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    [conv] = [node for node in model.graph.node if node.op_type == "Conv"]
    [node] = [node for node in model.graph.node if node.output[0] == conv.input[1]]
    return values[node.input[0]], values[node.input[1]]


def heavy(channels=64) -> np.ndarray:
    """Weights whose sums of two products are beyond 16 bits."""
    random = np.random.default_rng(0)
    return random.choice([127, -127, 90], (channels, 8, 1, 1)).astype(np.int8)


def bright() -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1, IMAGE).astype(np.float32)


@pytest.mark.parametrize("quantised", [True, False], ids=["int8", "quantised in the graph"])
@given(seed=st.integers(0, 2**32 - 1), each=st.booleans())
def test_exported_weights_are_halved_where_they_do_not_fit(tmp_path_factory, quantised, seed, each):
    random = np.random.default_rng(seed)
    most = random.choice([3, 64, 65, 128], 4)
    weight = np.stack([random.integers(-m, min(m, 127) + 1, (8, 1, 1)) for m in most])
    weight[:, 0] = np.where(random.random((4, 1, 1)) < 0.3, 127, weight[:, 0])
    weight = weight.astype(np.int8)
    scale = random.uniform(0.001, 0.1, 4) if each or not quantised else np.float32(0.01)
    model = exported(tmp_path_factory.mktemp("m") / "m.onnx", weight, scale, quantised=quantised)
    narrow_weights(model)
    onnx.checker.check_model(model, full_check=True)
    fits = np.array([largest_sum(channel.ravel()) < 2**15 for channel in weight])
    if not quantised and fits.all():
        return  # the graph quantises it as before
    integers, scales = weights_of(model)
    along = scales.reshape(-1, 1, 1, 1)
    before = np.asarray(scale, np.float32).reshape(-1, 1, 1, 1)
    assert all(largest_sum(channel.ravel()) < 2**15 for channel in integers)
    assert np.abs(integers * along - weight * before).max() <= along.max() * 0.5001
    if each or not quantised:
        np.testing.assert_array_equal(scales, np.where(fits, 1, 2) * before.ravel())


def test_weights_around_another_zero_point_stay(tmp_path):
    model = exported(tmp_path / "m.onnx", heavy(4), [0.01] * 4, zero=3)
    before = model.SerializeToString()
    narrow_weights(model)
    assert model.SerializeToString() == before


BIAS = np.arange(-32000, 32000, 1000, np.int32)


def test_a_bias_stays_in_steps_of_the_sums(tmp_path):
    """Where it is not, ONNX Runtime computes the layer in float."""
    model = exported(tmp_path / "m.onnx", heavy(), [0.002] * 64, bias=BIAS)
    narrow_weights(model)
    values = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    [node] = [node for node in model.graph.node if node.name == "bDQ"]
    steps, scale = (values[name] for name in node.input[:2])
    np.testing.assert_array_equal(steps, BIAS // 2)
    np.testing.assert_allclose(scale, weights_of(model)[1] / 255, rtol=1e-6)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("bias", [None, BIAS], ids=["", "bias"])
def test_a_backend_computes_what_an_exporter_meant(tmp_path, backend, bias):
    """It was 8 steps off where the CPU saturates; with 7 bits rounding may move it by one."""
    model = exported(tmp_path / "m.onnx", heavy(), [0.002] * 64, bias=bias)
    [want] = ReferenceSession(model).run(["out"], bright())
    assert 1 < np.abs(want).max() < 2.5  # no result is clipped
    served = recode(model, Encoding.UNSIGNED).SerializeToString()
    file = get_backend(backend).compile(served, tmp_path)
    with open_session(backend, file, max_batch=1) as session:
        have = session.infer({"images": bright()})["out"]
    assert np.abs(have - want).max() < 1.01 * 0.02


def test_the_judge_computes_in_float(tmp_path):
    weight = heavy()
    model = exported(tmp_path / "m.onnx", weight, [0.002] * 64)
    [have] = ReferenceSession(model).run(["out"], bright())
    row = np.rint(bright() * 255) / 255
    want = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0] * 0.002, row)
    assert np.abs(have - want).max() < 0.0101


@pytest.mark.real
@pytest.mark.parametrize("name", ["yolov5n", "mobilenetv2"])
def test_openvino_computes_the_graph_as_it_is_written(shared, name, tmp_path):
    """With 8 bits on a CPU that saturates yolov5n was .02 off, mobilenetv2 .4."""
    graph = quantise(prepared(shared, name).graph, ranges(shared, name), Encoding.UNSIGNED)
    row, output = bus(shared, name), graph.graph.output[0].name
    [want] = ReferenceSession(graph).run([output], row)
    file = get_backend("openvino").compile(graph.SerializeToString(), tmp_path)
    with open_session("openvino", file, max_batch=1) as session:
        have = session.infer({graph.graph.input[0].name: row})[output]
    assert error(have, want) < {"yolov5n": 0.01, "mobilenetv2": 0.1}[name]


@pytest.mark.parametrize("saturates", [False, True])
def test_the_encoding_and_the_key_follow_the_processor(tmp_path, monkeypatch, saturates):
    monkeypatch.setattr("fovea_engines.backends.backend.int8_saturates", lambda: saturates)
    bits = 7 if saturates else 8
    assert (Encoding.SIGNED.weight_bits, Encoding.UNSIGNED.weight_bits) == (8, bits)
    plan = BuildPlan(tmp_path / "m.onnx", "m", tmp_path / "r", precision="int8")
    assert plan.weight_bits == bits
    what = ("", PreprocessSpec(height=8, width=8), None, None, [])
    same = plan.content_key(*what, plan.weight_bits) == plan.content_key(*what)
    assert same is not saturates


def test_the_card_says_how_many_bits(card):
    eight = replace(card, precision="int8")
    seven = EngineCard.from_json(replace(eight, weight_bits=7).to_json())
    assert ("7 bits" in eight.calibration_text, "7 bits" in seven.calibration_text) == (False, True)
    assert seven.cpu_mismatch is card.cpu_mismatch is None
    assert bool(eight.cpu_mismatch) == int8_saturates()
    assert replace(eight, backend="tensorrt", builder=BuilderOptions()).cpu_mismatch is None
