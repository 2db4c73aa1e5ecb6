"""FP16: what is computed in it, what stays float32, and how far it moves results."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.real import DETECTORS, OTHERS, bus, error, prepared, ranges, run
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.heads.recognise import open_head
from fovea_engines.onnx_graph.wiring import Wiring
from fovea_engines.quantization.half import check_overflow, round_to_half, to_half
from fovea_engines.quantization.qdq import quantise
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import Disagreement, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.slow

SHAPE = [1, 3, 8, 8]
BOXES = ("yolov5n", "yolov8n", "yolov10n", "yolox_nano")
HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of every tensor."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {weight.name: weight.data_type for weight in graph.initializer}


def network(path, *nodes: onnx.NodeProto, outputs=("out",), **weights) -> onnx.ModelProto:
    """Nodes from "images" to `outputs`; "w" is the weight of a convolution."""
    weights = {"w": np.ones((3, 3, 1, 1), np.float32)} | weights
    used = {name for node in nodes for name in node.input}
    constants = [constant(name, value) for name, value in weights.items() if name in used]
    shapes = [(name, [1, 3, None, None]) for name in outputs]
    return onnx.load(save(path, nodes, [("images", SHAPE)], shapes, constants, opset=19))


def conv(source: str, result: str, *more: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [source, "w", *more], [result], result)


def node(op: str, sources: str, result: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, sources.split(), [result], result, **attributes)


def check(model: onnx.ModelProto) -> Wiring:
    """What holds of every half graph."""
    onnx.checker.check_model(model, full_check=True)
    assert {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)} == {
        FLOAT
    }
    kinds, wiring = types(model), Wiring(model)
    cast = [node for node in wiring.nodes if node.op_type == "Cast"]
    for one in cast:
        made = {kinds[one.input[0]], kinds[one.output[0]]}
        assert made == {HALF, FLOAT} or TensorProto.INT64 in made
        maker = wiring.producer.get(one.input[0])
        assert maker is None or maker.op_type != "Cast"  # neither there and back
        assert one.output[0] in wiring.outputs or wiring.consumers[one.output[0]]
    assert len({node.input[0] for node in cast}) == len(cast)  # nor twice
    return wiring


@pytest.mark.real
@pytest.mark.parametrize("name", [*DETECTORS, *OTHERS])
def test_all_is_float16_but_the_decoding_and_outputs_are_those_of_float32(shared, name):
    graph, row = prepared(shared, name).graph, bus(shared, name)
    model = to_half(graph)
    wiring, kinds = check(model), types(model)
    floats = {
        node.name
        for node in wiring.nodes
        if node.op_type != "Cast" and FLOAT in {kinds.get(tensor) for tensor in node.output}
    }
    # One layer of u2netp has a bias of 1361.
    large = {"Conv_787", "Relu_788"} if name == "u2netp" else set()
    assert floats - Wiring(graph).decoding() == large
    for node in wiring.layers():
        if node.name not in floats:
            assert {kinds[tensor] for tensor in node.input} == {HALF}
    wanted, found = run(graph, row), run(round_to_half(model), row)
    for want, have in zip(wanted, found, strict=True):
        assert have.dtype == np.float32
        if name == "yolov10n":  # rows are in the order of their scores: take those that count
            want, have = (rows[rows[..., 4] > 0.3] for rows in (want, have))
        assert 0 < error(have, want) < (0.02 if name == "yolox_nano" else 0.01)
    if name in BOXES:
        head = open_head(prepared(shared, name).head, prepared(shared, name).inputs)
        want, have = (
            head.decode(dict(zip(head.outputs, answer, strict=True)), 0, PredictOptions(conf=0.3))
            for answer in (wanted, found)
        )
        assert len(want) >= 4
        np.testing.assert_array_equal(have.class_ids, want.class_ids)
        # Sums of float32 differ from CPU to CPU: yolov5n's boxes move by .15 with AVX2 alone.
        np.testing.assert_allclose(have.boxes, want.boxes, atol=0.2)
        np.testing.assert_allclose(have.scores, want.scores, atol=5e-3)


@pytest.mark.real
@pytest.mark.parametrize("name", ["yolov5n", "yolox_nano", "mobilenetv2"])
def test_int8_with_float16_around_it(shared, name):
    graph, row = prepared(shared, name).graph, bus(shared, name)
    signed = quantise(graph, ranges(shared, name), Encoding.SIGNED)
    model = to_half(signed)
    wiring, kinds = check(model), types(model)
    for node in wiring.nodes:
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            assert kinds[node.input[1]] == HALF
            assert {kinds[node.input[0]], kinds[node.output[0]]} == {TensorProto.INT8, HALF}
    [exact], [want], [have] = (run(each, row) for each in (graph, signed, round_to_half(model)))
    # Rounding to float16 is nothing beside rounding to 256 steps.
    assert error(have, exact) < 1.2 * error(want, exact)


def test_a_large_bias_keeps_its_layer_and_activation_in_float32(tmp_path):
    model = network(
        tmp_path / "m.onnx",
        conv("images", "a", "small"), node("Relu", "a", "b"),
        conv("b", "c", "large"), node("Sigmoid", "c", "s"), node("Mul", "c s", "d"),
        conv("d", "e"), conv("e", "out"),
        small=np.full(3, 511.0, np.float32), large=np.full(3, 1361.25, np.float32),
    )  # fmt: skip
    kinds = types(to_half(model))
    assert [kinds[name] for name in ("a", "b", "c", "s", "d", "e")] == [
        HALF, HALF, FLOAT, FLOAT, FLOAT, HALF,
    ]  # fmt: skip
    row = np.random.default_rng(0).random(SHAPE, np.float32)
    [want], [have] = run(model, row), run(round_to_half(to_half(model)), row)
    assert error(have, want) < 5e-4


@pytest.mark.parametrize(("value", "fits"), [(65504, True), (-65505, False), (1e9, False)])
def test_a_constant_beyond_float16_is_refused(tmp_path, value, fits):
    limits = {"lo": np.float32(-np.inf), "hi": np.float32(value)}
    model = network(
        tmp_path / "m.onnx", node("Clip", "images lo hi", "a"), conv("a", "out"), **limits
    )
    if fits:
        check(to_half(model))
    else:
        with pytest.raises(UnsupportedModel, match="'hi'"):
            to_half(model)


def test_scales_and_what_has_no_float16_form_stay_float32(tmp_path):
    model = network(
        tmp_path / "m.onnx",
        conv("images", "a"), node("Resize", "a roi twice", "b", mode="nearest"),
        node("CumSum", "b axis", "c"), conv("c", "out"),
        roi=np.zeros(0, np.float32), twice=np.float32([1, 1, 2, 2]), axis=np.int64(1),
    )  # fmt: skip
    half = to_half(model)
    wiring, kinds = check(half), types(half)
    assert kinds[wiring.producer["b"].input[2]] == FLOAT
    assert [kinds[name] for name in ("a", "b", "c")] == [HALF, HALF, FLOAT]
    row = np.random.default_rng(0).random(SHAPE, np.float32)
    assert error(run(half, row)[0], run(model, row)[0]) < 1e-3


def test_an_output_that_is_used_on_the_way(tmp_path):
    model = network(
        tmp_path / "m.onnx", conv("images", "shown"), node("Relu", "shown", "seen"),
        conv("seen", "out"), outputs=("shown", "seen", "out"),
    )  # fmt: skip
    half = to_half(model)
    wiring = check(half)
    assert [output.name for output in half.graph.output] == ["shown", "seen", "out"]
    assert wiring.producer["seen/half"].input[0] == "shown/half"
    row = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for want, have in zip(run(model, row), run(half, row), strict=True):
        assert error(have, want) < 1e-3


def test_a_constant_of_both_types(tmp_path):
    """It is used before the last layer and after it."""
    model = network(
        tmp_path / "m.onnx", node("Mul", "images k", "a"), conv("a", "b"),
        node("Mul", "b k", "out"), k=np.float32(1 / 3),
    )  # fmt: skip
    half = to_half(model)
    wiring = check(half)
    assert wiring.producer["a"].input[1] == "k/half"
    assert wiring.producer["out"].input[1] == "k"
    assert {"k", "k/half", "w/half"} == wiring.constants.keys()


def test_a_processor_hides_what_overflows_on_a_gpu(tmp_path):
    """So float16 is judged by `round_to_half`: 1000 * 100 is no float16."""
    model = network(
        tmp_path / "m.onnx", conv("images", "a"), node("Mul", "a k", "b"), conv("b", "out"),
        w=np.eye(3, dtype=np.float32)[..., None, None] * 100, k=np.float32(1e-3),
    )  # fmt: skip
    row = np.full(SHAPE, 1000, np.float32)
    half = to_half(model)
    assert np.isfinite(run(half, row)[0]).all()
    assert not np.isfinite(run(round_to_half(half), row)[0]).any()
    fine = run(round_to_half(half), row / 10)[0]
    np.testing.assert_allclose(fine, run(model, row / 10)[0], rtol=2e-3)


def test_the_tensor_that_overflows_is_named(tmp_path):
    spec = PreprocessSpec(height=8, width=8)
    model = network(
        tmp_path / "m.onnx", conv("images", "a"), conv("a", "b"), node("Mul", "b k", "c"),
        conv("c", "out"), w=np.full((3, 3, 1, 1), 300, np.float32), k=np.float32(1e-4),
    )  # fmt: skip
    check_overflow(model, spec, None)
    with pytest.raises(Disagreement, match="'b'"):
        check_overflow(to_half(model), spec, None)


def test_integers_are_multiplied_before_anything_is_rounded(tmp_path):
    scale = np.float16(0.1)
    integers = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8).repeat(3, axis=1)
    model = network(
        tmp_path / "m.onnx", node("QuantizeLinear", "images s z", "q"),
        node("DequantizeLinear", "q s z", "d"), conv("d", "a"), conv("a", "out"),
        s=np.float32(scale), z=np.int8(0),
    )  # fmt: skip
    [found] = run(round_to_half(to_half(model)), integers * np.float32(scale))
    first = np.float16(3 * integers * np.float32(scale))
    np.testing.assert_array_equal(found, np.float32(np.float16(3 * np.float32(first))))
