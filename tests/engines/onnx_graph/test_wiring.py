"""What the convolutions of real networks are for."""

from fnmatch import fnmatchcase

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.real import DETECTORS, OTHERS, prepared
from tests.engines.tiny import constant, save

from fovea_engines.onnx_graph.wiring import Wiring, is_depthwise

pytestmark = pytest.mark.slow

# How many layers a result is read from, and what those of YOLO are called.
HEADS = {
    "yolov5n": (3, "/model.24/m.?/Conv"),
    "yolox_nano": (9, "Conv_3*"),
    "yolov8n": (6, "*.22.cv?.?.2/*"),
    "yolov10n": (6, "/model.23/one2one_cv?.?/one2one_cv?.?.2/Conv"),
    "yolov8n-pose": (9, "*.22.cv?.?.2/*"),
    "yolov8n-seg-320": (10, "/model.22/*"),
    "mobilenetv2": (2, "*"),
    "u2netp": (7, "*"),
}
# They take the mean of a distribution with a convolution (DFL).
WITH_DFL = {"yolov8n", "yolov10n", "yolov8n-pose", "yolov8n-seg-320"}
# What else multiplies with learned weights.
LEARNED = {
    "mobilenetv2": {"Gemm_104_MatMul"},
    "yolov8n-seg-320": {"/model.22/proto/upsample/ConvTranspose"},
}


def softmax_network(path, *between: onnx.NodeProto, weight=(4, 4, 1, 1), last="Conv") -> Wiring:
    """A convolution, a softmax, `between` (from "s" to "t"), and the product that comes last."""
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["c"], "first"),
        helper.make_node("Softmax", ["c"], ["s"], "softmax", axis=1),
        *between,
        helper.make_node(last, ["t", "v"], ["out"], "second"),
    ]
    weights = [
        constant("w", np.ones((4, 3, 1, 1), np.float32)),
        constant("v", np.ones(weight, np.float32)),
        constant("shape", np.array([0, 4, 16, 4])),
        constant("half", np.float32(0.5)),
    ]
    out = [("out", [1, weight[0], None, None])]
    return Wiring(onnx.load(save(path, nodes, [("images", [1, 3, 8, 8])], out, weights)))


@pytest.mark.parametrize("name", HEADS)
def test_layers_that_results_are_read_from(shared, name):
    wiring = Wiring(prepared(shared, name).graph)
    count, pattern = HEADS[name]
    head = wiring.head_layers()
    assert len(head) == count
    assert all(fnmatchcase(layer, pattern) for layer in head)
    assert wiring.outputs == {output.name for output in prepared(shared, name).outputs}


@pytest.mark.parametrize("name", HEADS)
def test_the_mean_of_a_distribution_is_no_layer(shared, name):
    wiring = Wiring(prepared(shared, name).graph)
    layers = {node.name for node in wiring.layers()}
    others = [n for n in wiring.nodes if n.op_type == "Conv" and n.name not in layers]
    assert len(others) == (name in WITH_DFL)
    for node in others:
        steps = onnx.numpy_helper.to_array(wiring.constants[node.input[1]]).ravel()
        np.testing.assert_allclose(steps, np.arange(16), atol=0.1)
        assert node.name in wiring.decoding()


def test_attention_is_not_taken_for_it(shared):
    """YOLOv10 has two softmaxes; the one inside the network is of its attention."""
    wiring = Wiring(prepared(shared, "yolov10n").graph)
    softmaxes = {node.name for node in wiring.nodes if node.op_type == "Softmax"}
    assert len(softmaxes) == 2
    assert len(softmaxes & wiring.decoding()) == 1
    attention = {node.name for node in wiring.layers() if "/attn/" in node.name}
    assert {name.split("/")[-3] for name in attention} == {"qkv", "proj", "pe"}


@pytest.mark.parametrize("name", [*DETECTORS, *OTHERS])
def test_decoding_is_all_that_nothing_learned_comes_after(shared, name):
    wiring = Wiring(prepared(shared, name).graph)
    learned = {node.name for node in wiring.layers()} | LEARNED.get(name, set())
    reach: set[str] = set()
    for node in reversed(wiring.nodes):
        takers = {taker.name for output in node.output for taker in wiring.consumers[output]}
        if takers & (learned | reach):
            reach.add(node.name)
    assert wiring.decoding() == {node.name for node in wiring.nodes} - reach - learned
    if name in OTHERS:
        assert {"Add", "Sigmoid"} >= {
            node.op_type for node in wiring.nodes if node.name in wiring.decoding()
        }


def test_only_what_moves_values_may_stand_between(tmp_path):
    moved = [
        helper.make_node("Transpose", ["s"], ["r"], "move", perm=[0, 1, 3, 2]),
        helper.make_node("Reshape", ["r", "shape"], ["t"], "shape"),
    ]
    wiring = softmax_network(tmp_path / "m.onnx", *moved, weight=(1, 4, 1, 1))
    assert [node.name for node in wiring.layers()] == ["first"]
    assert wiring.decoding() == {"softmax", "move", "shape", "second"}
    assert wiring.head_layers() == {"first"}
    scaled = softmax_network(tmp_path / "m.onnx", helper.make_node("Mul", ["s", "half"], ["t"]))
    assert [node.name for node in scaled.layers()] == ["first", "second"]


def test_a_mean_may_be_taken_with_a_matrix(tmp_path):
    """As NanoDet does: it must stay float32 as well."""
    moved = helper.make_node("Transpose", ["s"], ["t"], "move", perm=[0, 2, 3, 1])
    wiring = softmax_network(tmp_path / "m.onnx", moved, weight=(4, 1), last="MatMul")
    assert wiring.decoding() == {"softmax", "move", "second"}
    other = helper.make_node("Relu", ["c"], ["t"], "relu")
    wiring = softmax_network(tmp_path / "m.onnx", other, weight=(8, 1), last="MatMul")
    assert wiring.decoding() == {"softmax"}


def test_a_layer_whose_result_is_shown_and_used_is_of_the_head(tmp_path):
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["shown"], "first"),
        helper.make_node("Conv", ["shown", "w"], ["out"], "second"),
    ]
    shape = [1, 3, 8, 8]
    path = save(
        tmp_path / "m.onnx", nodes, [("images", shape)], [("shown", shape), ("out", shape)],
        [constant("w", np.ones((3, 3, 1, 1), np.float32))],
    )  # fmt: skip
    wiring = Wiring(onnx.load(path))
    assert wiring.head_layers() == {"first", "second"}
    assert wiring.decoding() == set()


@pytest.mark.parametrize(
    ("group", "shape", "is_one"),
    [(1, (4, 4, 1, 1), False), (4, (4, 1, 3, 3), True), (4, (8, 1, 3, 3), True),
     (2, (4, 2, 1, 1), False), (1, (4, 1, 3, 3), False)],
)  # fmt: skip
def test_depthwise_is_a_channel_from_a_channel(group, shape, is_one):
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=group)
    assert is_depthwise(node, constant("w", np.ones(shape, np.float32))) is is_one
