"""Faults that an SNR alone hides: in picks, in small channels, in what overflows."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.tiny import constant, save

from fovea_engines.inspect.describe import to_json, verdict
from fovea_engines.inspect.diff import diff
from fovea_engines.quantization.half import to_half

SHAPE = [1, 3, 16, 16]


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


def masked(path, op="Greater", threshold=0.1, gain=1.0):
    """images -> Mul -> (compared with a threshold) -> Where -> out."""
    return save(
        path,
        [
            node("Mul", "images gain", "scaled"),
            node(op, "scaled threshold", "mask"),
            node("Where", "mask scaled zero", "out"),
        ],
        [("images", SHAPE)],
        [("out", SHAPE)],
        [
            constant(name, np.float32(value))
            for name, value in (("gain", gain), ("threshold", threshold), ("zero", 0))
        ],
    )


def extreme(path, op):
    nodes = [node(op, "images", "best", axis=1), node("Cast", "best", "out", to=TensorProto.FLOAT)]
    return save(path, nodes, [("images", SHAPE)], [("out", [1, 1, 16, 16])], [])


@pytest.mark.parametrize("gain", [1.0, 1 + 1e-6], ids=["equal inputs", "close inputs"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"threshold": 0.8}, "its threshold is 0.1 in A and 0.8 in B"),
        ({"op": "Less"}, "A computes Greater where B computes Less"),
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
    assert found.causes == ("A computes ArgMax where B computes ArgMin",)


def detections(path, score):
    """images -> rows of two coordinates of hundreds of pixels and one score."""
    nodes = [node("Reshape", "images rows", "flat"), node("Mul", "flat units", "out")]
    weights = [
        constant("rows", np.array([1, 256, 3])),
        constant("units", np.array([640, 640, score], np.float32)),
    ]
    return save(path, nodes, [("images", SHAPE)], [("out", [1, 256, 3])], weights)


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


def test_scores_that_agree_beside_boxes_are_no_divergence(tmp_path):
    found = diff(detections(tmp_path / "a.onnx", 1.0), detections(tmp_path / "b.onnx", 0.9999))
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
    path = save(tmp_path / "a.onnx", nodes, [("images", SHAPE)], [("out", [1, 4, 14, 14])], weights)
    onnx.save(to_half(onnx.load(path)), tmp_path / "half.onnx")
    found = diff(path, tmp_path / "half.onnx")
    assert found.first.a.name == "summed"
    [cause] = found.causes
    assert "float16 ends at 65504: it overflows" in cause
