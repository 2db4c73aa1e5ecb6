"""A model that came quantised: built as it is, with its own scales, for either kind of runtime."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.qat import quantised_in_training
from tests.engines.real import bus, error, prepared, ranges, run
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import round_to_half, to_half
from fovea_engines.quantization.qdq import quantisable, quantise
from fovea_engines.quantization.quantisation import validate
from fovea_engines.quantization.recode import quantised_share, recode
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.real

SHAPE = [1, 3, 8, 8]
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


def test_normalising_folds_no_quantised_weight(trained):
    before = counts(onnx.load(trained))
    after = counts(normalise(load(trained).proto))
    pairs = ("QuantizeLinear", "DequantizeLinear", "Conv")
    assert [after[op] for op in pairs] == [before[op] for op in pairs]
    assert before["QuantizeLinear"] > 53


@pytest.mark.usefixtures("eight_bits")
def test_both_encodings_compute_what_the_exporter_meant(shared, trained):
    row = bus(shared, "yolov5n")
    [want] = run(onnx.load(trained), row)
    [plain] = run(prepared(shared, "yolov5n").graph, row)
    graph = normalise(load(trained).proto)
    assert quantised_share(graph) == (53, 60)
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


class Notes(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def note(self, text: str) -> None:
        self.text += text


def test_it_is_built_as_it_is_and_serves_the_same(shared, trained, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    plan = BuildPlan(trained, "qat", tmp_path / "r", images=tmp_path / "images")
    progress = Notes()
    card = build(plan, progress)
    assert "53 of 60 layers are INT8, the others stay float" in progress.text
    assert (card.precision, card.calibration, card.backend) == ("int8", None, "openvino")
    row = bus(shared, "yolov5n")
    with Engine.open(tmp_path / "r" / "qat" / "1") as engine:
        have = engine.session.infer({"images": row})["output0"]
    [want] = run(onnx.load(trained), row)
    # OpenVINO computes the file itself, with its signed activations, .1 off.
    # In 7 bits, weights are rounded again: that alone is .021.
    assert error(have, want) < (0.02 if card.weight_bits == 8 else 0.025)


def test_it_is_not_brought_to_float16(trained, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"quantised by its exporter.*--precision int8"):
        build(BuildPlan(trained, "qat", tmp_path / "r", precision="fp16"))
    assert not list((tmp_path / "r").glob("qat/1"))


def test_it_is_never_quantised_twice(trained, shared):
    graph = normalise(load(trained).proto)
    # Only layers that it left out could be.
    assert set(quantisable(graph)) == set(
        quantisable(prepared(shared, "yolov5n").graph)[-LEFT_OUT:]
    )


@pytest.mark.parametrize("encoding", Encoding)
def test_pairs_may_share_a_zero_point(tmp_path, encoding):
    nodes = [
        *pair("images"), helper.make_node("Conv", ["imagesd", "w"], ["a"], "one"),
        *pair("a"), helper.make_node("Conv", ["ad", "w"], ["out"], "two"),
    ]  # fmt: skip
    model = network(tmp_path / "m.onnx", nodes)
    before = model.SerializeToString()
    recoded = recode(model, encoding)
    assert model.SerializeToString() == before
    onnx.checker.check_model(recoded, full_check=True)
    assert sum(zero_points(recoded).values()) == 2
    row = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_array_equal(run(recoded, row)[0], run(model, row)[0])


def test_a_zero_point_may_be_left_out_where_it_is_zero(tmp_path):
    quantised, real = pair("images")
    del real.input[2]
    nodes = [quantised, real, helper.make_node("Conv", ["imagesd", "w"], ["out"], "one")]
    model = network(tmp_path / "m.onnx", nodes)
    recoded = recode(model, Encoding.UNSIGNED)
    row = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_array_equal(run(recoded, row)[0], run(model, row)[0])
    assert zero_points(recoded) == {("uint8", 128): 1}


@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(100), np.int8(-128), np.int8(5)])
@pytest.mark.parametrize("encoding", Encoding)
def test_what_has_no_counterpart_stays(tmp_path, zero, encoding):
    nodes = [*pair("images"), helper.make_node("Conv", ["imagesd", "w"], ["out"], "one")]
    model = network(tmp_path / "m.onnx", nodes, zero)
    assert recode(model, encoding) == model


def test_integers_that_are_computed_with_stay(tmp_path):
    """A MaxPool over int8 would find other values in uint8 with another zero point."""
    quantised, real = pair("images")
    real.input[0] = "pooled"
    pool = helper.make_node("MaxPool", ["imagesq"], ["pooled"], "pool", kernel_shape=[1, 1])
    conv = helper.make_node("Conv", ["imagesd", "w"], ["out"], "one")
    model = network(tmp_path / "m.onnx", [quantised, pool, real, conv])
    assert recode(model, Encoding.UNSIGNED) == model


@pytest.mark.parametrize("zero", ["", "computed"])
def test_a_pair_without_a_constant_zero_point_is_refused(tmp_path, zero):
    nodes = [*pair("images", zero), helper.make_node("Conv", ["imagesd", "w"], ["out"], "one")]
    if zero:
        top = helper.make_node("ReduceMax", ["images"], ["top"], "top", keepdims=0)
        nodes = [top, helper.make_node("Cast", ["top"], ["computed"], "cast", to=3), *nodes]
    model = network(tmp_path / "m.onnx", nodes)
    with pytest.raises(UnsupportedModel, match="imagesQ quantises without a constant zero point"):
        recode(model, Encoding.UNSIGNED)


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
