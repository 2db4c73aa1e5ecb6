"""Layers of small networks: which belong together, how far they are apart, and why."""

import re
from dataclasses import replace
from itertools import pairwise

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.fragile import broken
from tests.engines.noting import Noting
from tests.engines.tiny import constant, save, tiny_network

from fovea_engines.backends.openvino import OPENVINO
from fovea_engines.inspect.describe import title, to_json, verdict
from fovea_engines.inspect.diff import diff
from fovea_engines.inspect.figures import figures_of
from fovea_engines.quantization.half import to_half

IMAGE = ("images", [1, 3, 16, 16])
RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
SECOND = RANDOM.normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


def two_convs(path, nodes=(), outputs="out", **weights):
    """images -> Conv -> (nodes: c1 -> a1) -> Conv -> out."""
    weights = {"w1": KERNEL, "w2": SECOND} | weights
    return save(
        path,
        [
            node("Conv", "images w1", "c1", pads=[1] * 4),
            *(nodes or [node("Relu", "c1", "a1")]),
            node("Conv", "a1 w2", outputs, pads=[1] * 4),
        ],
        [IMAGE],
        [(outputs, [1, 4, 16, 16])],
        [constant(name, value) for name, value in weights.items()],
    )


def test_figures_are_those_of_their_formulas():
    a, b = RANDOM.normal(size=(2, 2, 3, 5)).astype(np.float32)
    found = figures_of(zip(a, b, strict=True))
    a, b = a.astype(float).ravel(), b.astype(float).ravel()
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert found.snr_db == pytest.approx(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))
    assert found.max_error == pytest.approx(np.abs(a - b).max())
    assert found.range_a == (a.min(), a.max())
    assert found.range_b == (b.min(), b.max())
    assert found.values == (tuple(a[:5]), tuple(b[:5]))


def test_values_that_are_not_finite_are_counted_and_spoil_no_figure():
    a = np.array([0, 1, np.nan, np.inf, np.inf, 2, np.nan])
    b = np.array([0, 1, np.nan, np.inf, -np.inf, np.nan, 3])
    found = figures_of([(a, b)])
    assert (found.broken, found.snr_db, found.range_a) == (3, float("inf"), (0, 1))


def quantised(path):
    nodes = [
        node("Relu", "c1", "r1"),
        node("QuantizeLinear", "r1 scale zero", "q1"),
        node("DequantizeLinear", "q1 scale zero", "a1"),
    ]
    return two_convs(path, nodes, scale=np.float32(0.04), zero=np.int8(0))


def test_casts_and_quantisation_count_to_the_layer_they_follow(tmp_path):
    casts = [
        node("Relu", "c1", "r1"),
        node("Cast", "r1", "h1", to=onnx.TensorProto.FLOAT16),
        node("Cast", "h1", "a1", to=onnx.TensorProto.FLOAT),
    ]
    plain = two_convs(tmp_path / "a.onnx")
    for other, precision, least, most in (
        (two_convs(tmp_path / "b.onnx", casts), "fp16", 60, 80),
        # Steps of .04, so noise of .04^2 / 12: 39 dB under a signal of power 1.
        (quantised(tmp_path / "c.onnx"), "int8", 30, 45),
    ):
        found = diff(plain, other)
        assert [(one.a.name, one.b.name) for one in found.layers] == [
            ("images", "images"), ("c1", "c1"), ("a1", "r1"), ("out", "out"),
        ]  # fmt: skip
        assert (found.precision_a, found.precision_b, found.agrees) == ("fp32", precision, True)
        assert least < found.layers[2].snr_db < most
    assert found.layers[1].snr_db == float("inf")


def test_an_output_replaces_no_tensor_that_is_read_on(tmp_path):
    plain = two_convs(tmp_path / "a.onnx", [node("Relu", "c1", "r1"), node("Neg", "r1", "a1")])
    nodes = [
        node("Conv", "images w1", "c1", pads=[1] * 4),
        node("Tanh", "c1", "beside"),
        node("Neg", "c1", "a1"),
        node("Conv", "a1 w2", "out", pads=[1] * 4),
    ]
    shape, weights = [1, 4, 16, 16], [constant("w1", KERNEL), constant("w2", SECOND)]
    outputs = [("out", shape), ("beside", shape)]
    other = save(tmp_path / "b.onnx", nodes, [IMAGE], outputs, weights)
    pairs = [(one.a.name, one.b.name) for one in diff(plain, other).layers]
    assert pairs == [(name, name) for name in ("images", "c1", "a1", "out")]


def test_every_tensor_that_is_compared_is_counted(tmp_path):
    progress = Noting()
    flat = np.zeros((4, 4, 1, 1), np.float32)  # gives an output of another shape
    found = diff(
        two_convs(tmp_path / "a.onnx"), two_convs(tmp_path / "b.onnx", w2=flat), progress=progress
    )
    assert [one.figures is None for one in found.layers] == [False, False, False, True]
    assert progress.counts == [(1, 3), (2, 3), (3, 3)]


def test_inner_tensors_of_an_openvino_engine_are_read_one_by_one_where_it_differs(tmp_path):
    path = two_convs(tmp_path / "a.onnx")
    OPENVINO.compile(path, tmp_path)
    progress = Noting()
    assert diff(path, tmp_path, progress=progress).agrees
    assert progress.counts == [(1, 4), (2, 4), (3, 4), (4, 4), (1, 1)]
    other = two_convs(tmp_path / "b.onnx", w2=np.ones((4, 4, 3, 3), np.float32))
    found = diff(other, tmp_path, progress=progress)
    assert found.first.a.name == "out"
    assert progress.counts[10:] == [(1, 3), (2, 3), (3, 3)]


def test_a_tensor_that_a_runtime_has_transposed_is_compared_as_it_was(tmp_path):
    """As OpenVINO does with the heads of attention."""
    shapes = [("three", (3, 16, 16)), ("four", (3, 1, 16, 16)), ("image", (1, 3, 16, 16))]
    weights = [constant(name, np.array(shape)) for name, shape in shapes]
    swap = {"perm": [1, 0, 2]}
    names = ["images", *(f"/tanh/{place}" for place in range(20))]
    alike = [node("Tanh", *pair) for pair in pairwise(names)]
    written = [
        *alike,
        node("Reshape", f"{names[-1]} three", "/r"),
        node("Transpose", "/r", "/t", **swap),
        node("Sigmoid", "/t", "/s"),
        node("Transpose", "/s", "/u", **swap),
        node("Reshape", "/u image", "out"),
    ]
    kept = [
        *alike,
        node("Reshape", f"{names[-1]} four", "/t"),
        node("Sigmoid", "/t", "/v"),
        node("Reshape", "/v image", "out"),
    ]
    paths = [
        save(tmp_path / name, nodes, [IMAGE], [("out", IMAGE[1])], weights)
        for name, nodes in (("a.onnx", written), ("b.onnx", kept))
    ]
    OPENVINO.compile(paths[1], tmp_path)
    found = diff(paths[0], tmp_path)
    assert found.agrees
    [one] = [one for one in found.layers if one.a.name == "/t"]
    assert (one.a.shape, one.b.shape) == ((16, 3, 16), (3, 1, 16, 16))
    assert one.snr_db > 100


def test_a_layer_is_called_by_what_is_known_of_it(tmp_path):
    path = two_convs(tmp_path / "a.onnx", [node("Relu", "c1", "a1")])
    OPENVINO.compile(path, tmp_path)
    with_operator = diff(path, tmp_path).layers[2]
    assert title(with_operator.a) == "a1 (Relu)"
    assert title(with_operator.b) == f"a1 ({with_operator.b.node})"
    assert with_operator.b.node.strip()
    assert title(replace(with_operator.b, node="")) == "a1"


def test_an_openvino_engine_has_the_layers_of_its_file(tmp_path):
    path = quantised(tmp_path / "a.onnx")
    OPENVINO.compile(path, tmp_path)
    found = diff(path, tmp_path)
    assert [(one.a.name, one.b.name) for one in found.layers] == [
        ("images", "images"), ("c1", "c1"), ("r1", "r1"), ("out", "out"),
    ]  # fmt: skip
    assert (found.precision_a, found.precision_b, found.agrees) == ("int8", "int8", True)
    # Both quantised: were one of them looked at before that, they would be 39 dB apart.
    assert found.layers[2].snr_db > 60


def test_a_range_that_clips_is_named(tmp_path):
    narrow = onnx.load(quantised(tmp_path / "b.onnx"))
    [scale] = (w for w in narrow.graph.initializer if w.name == "scale")
    scale.CopyFrom(constant("scale", np.float32(0.0005)))
    onnx.save(narrow, tmp_path / "b.onnx")
    found = diff(two_convs(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert found.first.a.name == "a1"
    assert "the range of the quantisation is too narrow" in found.causes[0]


def test_numbers_that_another_exporter_gave_are_no_names(tmp_path):
    path = two_convs(tmp_path / "a.onnx")
    model = onnx.load(path)
    shifted = {"c1": "a1", "a1": "out", "out": "c1", "w1": "w2", "w2": "w1"}
    for part in model.graph.node:
        for field in (part.input, part.output):
            names = [shifted.get(name, name) for name in field]
            del field[:]
            field.extend(names)
    for value in (*model.graph.output, *model.graph.initializer):
        value.name = shifted[value.name]
    onnx.save(model, tmp_path / "b.onnx")
    found = diff(path, tmp_path / "b.onnx")
    assert [(one.a.name, one.b.name, one.by) for one in found.layers[1:]] == [
        ("c1", "a1", "order"), ("a1", "out", "order"), ("out", "c1", "order"),
    ]  # fmt: skip
    assert found.agrees


def test_a_folded_normalisation_is_part_of_its_convolution(tmp_path):
    gamma, beta, mean, var = (RANDOM.uniform(0.5, 1, 4).astype(np.float32) for _ in range(4))
    unfolded = [
        node("BatchNormalization", "c1 gamma beta mean var", "n1", epsilon=0.0),
        node("Relu", "n1", "a1"),
    ]
    a = two_convs(tmp_path / "a.onnx", unfolded, gamma=gamma, beta=beta, mean=mean, var=var)
    factor = gamma / np.sqrt(var)
    model = onnx.load(two_convs(tmp_path / "b.onnx", w1=KERNEL * factor[:, None, None, None]))
    model.graph.node[0].input.append("bias")
    model.graph.initializer.append(constant("bias", beta - mean * factor))
    onnx.save(model, tmp_path / "b.onnx")
    found = diff(a, tmp_path / "b.onnx")
    assert [one.a.name for one in found.layers] == ["images", "c1", "a1", "out"]
    assert found.agrees
    assert not found.unmatched_a


def test_an_operator_that_was_written_out_is_matched_at_its_end(tmp_path):
    a = two_convs(tmp_path / "a.onnx", [node("HardSwish", "c1", "a1")])
    parts = [
        node("HardSigmoid", "c1", "s", alpha=1 / 6, beta=0.5),
        node("Mul", "c1 s", "m"),
        node("Identity", "m", "a1"),
    ]
    model = onnx.load(two_convs(tmp_path / "b.onnx", parts))
    del model.graph.node[-2]
    model.graph.node[-1].input[0] = "m"
    onnx.save(model, tmp_path / "b.onnx")
    found = diff(a, tmp_path / "b.onnx")
    assert ("a1", "m", "order") in [(one.a.name, one.b.name, one.by) for one in found.layers]
    assert found.agrees
    assert [layer.name for layer in found.unmatched_b] == ["s"]


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (
            {"nodes": [node("LeakyRelu", "c1", "a1", alpha=0.1)]},
            {"nodes": [node("LeakyRelu", "c1", "a1", alpha=0.2)]},
            r"a1 \(LeakyRelu\): SNR .* its alpha is 0.1 in A and 0.2 in B",
        ),
        (
            {"nodes": [node("Clip", "c1 low", "a1")], "low": np.float32(0)},
            {"nodes": [node("Clip", "c1 low", "a1")], "low": np.float32(-1)},
            "its low is 0 in A and -1 in B",
        ),
        (
            {},
            {"w2": np.where(np.arange(4) == 2, 5, SECOND.T).T},
            "its w2 differs between A and B in 1 of 4",
        ),
        ({}, {"w1": np.where(KERNEL > 0, np.inf, KERNEL)}, "c1 .Conv.: .* NaN or infinite"),
        (
            {"nodes": [node("MaxPool", "c1", "a1", kernel_shape=[3, 3], pads=[1] * 4)]},
            {"nodes": [node("MaxPool", "c1", "a1", kernel_shape=[3, 3])]},
            r"shape is 1x4x16x16 in A and 1x4x14x14 in B .* pads is \[1, 1, 1, 1\] in A and not",
        ),
    ],
    ids=["attribute", "scalar", "channel", "infinite", "shape"],
)
def test_the_cause_is_named(tmp_path, a, b, says):
    first, second = two_convs(tmp_path / "a.onnx", **a), two_convs(tmp_path / "b.onnx", **b)
    found = diff(first, second)
    assert not found.agrees
    assert re.search(says, verdict(found)), verdict(found)


def masked(path, op="Greater", threshold=0.1, gain=1.0):
    """images -> Mul -> (compared with a threshold) -> Where -> out."""
    return save(
        path,
        [
            node("Mul", "images gain", "scaled"),
            node(op, "scaled threshold", "mask"),
            node("Where", "mask scaled zero", "out"),
        ],
        [("images", IMAGE[1])],
        [("out", IMAGE[1])],
        [
            constant(name, np.float32(value))
            for name, value in (("gain", gain), ("threshold", threshold), ("zero", 0))
        ],
    )


def extreme(path, op):
    nodes = [node(op, "images", "best", axis=1), node("Cast", "best", "out", to=TensorProto.FLOAT)]
    return save(path, nodes, [("images", IMAGE[1])], [("out", [1, 1, 16, 16])], [])


@pytest.mark.parametrize("gain", [1.0, 1 + 1e-6], ids=["equal inputs", "close inputs"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"threshold": 0.8}, "its threshold is 0.1 in A and 0.8 in B"),
        ({"op": "Less"}, "A computes Greater, but B computes Less"),
    ],
    ids=["constant", "operator"],
)
def test_a_mask_that_is_computed_otherwise_diverges(tmp_path, fault, says, gain):
    found = diff(masked(tmp_path / "a.onnx"), masked(tmp_path / "b.onnx", gain=gain, **fault))
    assert found.first.a.name == "mask"
    assert found.causes == (says,)


def test_other_indices_of_equal_inputs_diverge(tmp_path):
    found = diff(extreme(tmp_path / "a.onnx", "ArgMax"), extreme(tmp_path / "b.onnx", "ArgMin"))
    assert found.first.a.name == "best"
    assert found.causes == ("A computes ArgMax, but B computes ArgMin",)


def detections(path, score):
    """images -> rows of two coordinates of hundreds of pixels and one score."""
    nodes = [node("Reshape", "images rows", "flat"), node("Mul", "flat units", "out")]
    weights = [
        constant("rows", np.array([1, 256, 3])),
        constant("units", np.array([640, 640, score], np.float32)),
    ]
    return save(path, nodes, [("images", IMAGE[1])], [("out", [1, 256, 3])], weights)


def test_boxes_do_not_hide_scores(tmp_path):
    found = diff(detections(tmp_path / "a.onnx", 1.0), detections(tmp_path / "b.onnx", 0.9))
    [out] = (one for one in found.layers if one.a.is_output)
    assert out.figures.snr_db > 60
    assert found.first is out
    assert out.snr_db == pytest.approx(20, abs=0.01)
    assert "SNR 20.0 dB at 2 of axis 2, whose values are far smaller" in verdict(found)
    assert to_json(found)["first_divergent"]["small_slices"] == {
        "axis": 2, "positions": [2], "snr_db": pytest.approx(20, abs=0.01),
    }  # fmt: skip
    found = diff(tmp_path / "a.onnx", detections(tmp_path / "b.onnx", 0.9999))
    assert found.agrees
    assert found.layers[-1].snr_db == pytest.approx(80, abs=0.1)


def test_what_overflows_in_float16_is_said_first(tmp_path):
    weight = np.random.default_rng(0).uniform(1, 2, (4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Mul", "images gain", "loud"),
        node("Conv", "loud weight", "summed"),
        node("Mul", "summed quiet", "out"),
    ]
    weights = [
        constant("gain", np.float32(1e4)),
        constant("weight", weight),
        constant("quiet", np.float32(1e-4)),
    ]
    path = save(
        tmp_path / "a.onnx", nodes, [("images", IMAGE[1])], [("out", [1, 4, 14, 14])], weights
    )
    onnx.save(to_half(onnx.load(path)), tmp_path / "half.onnx")
    found = diff(path, tmp_path / "half.onnx")
    assert found.first.a.name == "summed"
    [cause] = found.causes
    assert "float16 is 65504: this layer overflows" in cause


def test_nan_is_no_agreement(tmp_path):
    """Of a bright image and a black one."""
    images = tmp_path / "images"
    images.mkdir()
    cv2.imwrite(str(images / "a.png"), np.full((64, 64, 3), 200, np.uint8))
    cv2.imwrite(str(images / "b.png"), np.zeros((64, 64, 3), np.uint8))
    source = broken(tiny_network(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    found = diff(source, source, images)
    assert found.first is None
    assert not found.agrees
    assert "out, an output of A, was not compared" in verdict(found)
    assert "NaN in both" in verdict(found)
    (images / "b.png").unlink()
    assert diff(source, source, images).agrees
    other = broken(tiny_network(tmp_path / "a.onnx"), tmp_path / "other.onnx")
    cv2.imwrite(str(images / "b.png"), np.zeros((64, 64, 3), np.uint8))
    found = diff(tmp_path / "a.onnx", other, images)
    assert not found.agrees
    assert "NaN or infinite in one of them only" in verdict(found)
