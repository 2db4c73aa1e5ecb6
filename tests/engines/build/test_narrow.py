"""INT8 on CPUs that add two products in 16 bits: weights of 7 bits, whose sums fit."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.engines.real import bus, error, prepared, ranges
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.backends.registry import get_backend, open_session
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import int8_saturates
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.quantization.qdq import encode_weight, quantise
from fovea_engines.quantization.recode import narrow_weights, recode
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.options import BuilderOptions
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.real

SHAPE = [1, 8, 16, 16]
CPU_BACKENDS = pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])


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
    return onnx.load(save(path, nodes, [("images", SHAPE)], [("out", out)], weights, opset=13))


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
    return np.random.default_rng(1).uniform(0.5, 1, SHAPE).astype(np.float32)


def largest_sum(channel: np.ndarray) -> int:
    return max(abs(255 * int(a) + 255 * int(b)) for a, b in combinations(channel, 2))


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=12))
def test_the_sums_of_weights_of_7_bits_fit_16_bits(values):
    integers, _ = encode_weight(np.array([values], np.float32), 7)
    assert largest_sum(integers[0]) < 2**15


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12))
def test_weights_of_7_bits_are_as_fine_as_their_sums_allow(values):
    """At least 63 steps, as of 7 bits; 127 beside weights that are small."""
    row = np.array([values], np.float32)
    most = np.abs(row).max()
    _, [scale] = encode_weight(row, 7)
    small = 1e-4
    assert scale <= max(most / 63, small)
    assert scale >= most / 127
    rest = np.sort(np.abs(row))[0, :-1]
    if not rest.any():
        assert scale <= max(most / 126, small)


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
    integers, scales = weights_of(model) if quantised else (None, None)
    fits = np.array([largest_sum(channel.ravel()) < 2**15 for channel in weight])
    if integers is None and (fits.all() if each or not quantised else False):
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


def test_a_bias_stays_in_steps_of_the_sums(tmp_path):
    """Where it is not, ONNX Runtime computes the layer in float."""
    bias = np.arange(-32000, 32000, 1000, np.int32)
    model = exported(tmp_path / "m.onnx", heavy(), [0.002] * 64, bias=bias)
    narrow_weights(model)
    values = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    [node] = [node for node in model.graph.node if node.name == "bDQ"]
    steps, scale = (values[name] for name in node.input[:2])
    np.testing.assert_array_equal(steps, bias // 2)
    np.testing.assert_allclose(scale, weights_of(model)[1] / 255, rtol=1e-6)


@CPU_BACKENDS
@pytest.mark.parametrize("bias", [None, np.arange(-32000, 32000, 1000, np.int32)], ids=["", "bias"])
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


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "avx2 fma", True),
        ("x86_64", "avx2 avx512f", True),
        ("x86_64", "avx2 avx_vnni", False),
        ("AMD64", "avx512f avx512_vnni", False),
        ("x86_64", "amx_int8", False),
        ("x86_64", None, True),
        ("aarch64", None, False),
        ("arm64", None, False),
    ],
)
def test_which_processors_saturate(tmp_path, monkeypatch, machine, flags, saturates):
    monkeypatch.setattr("platform.machine", lambda: machine)
    if flags is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert int8_saturates(tmp_path) is saturates


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
    assert "bits" not in eight.calibration_text
    assert seven.calibration_text.endswith("; weights in 7 bits, for CPUs without VNNI")
    assert seven.cpu_mismatch is card.cpu_mismatch is None
    assert bool(eight.cpu_mismatch) == int8_saturates()
    assert replace(eight, backend="tensorrt", builder=BuilderOptions()).cpu_mismatch is None
