"""Each rule of TensorRT for quantised graphs, broken once; `test_rtx.py` asks TensorRT itself."""

import re

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.tiny import constant, save

from fovea_engines.quantization.quantisation import validate
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow

SHAPE = [1, 8, 16, 16]

# By name: what is written otherwise, and what the validator says of it.
FAULTS = {
    "uint8": ({"zero": np.uint8(0)}, "Q has the type uint8"),
    "uint8 around 128": ({"zero": np.uint8(128)}, "Q has the type uint8"),
    "another zero point": ({"zero": np.int8(3)}, "Q has a zero point other than 0"),
    "no zero point": ({"zero": None}, "Q has no zero point, which makes it uint8"),
    "computed zero point": ({"computed": "zero"}, "Q has a zero point that is computed"),
    "computed scale": ({"computed": "scale"}, "Q has a scale that is computed"),
    "scale 0": ({"scale": np.float32(0)}, "Q has a scale that is not a positive number"),
    "negative scale": ({"scale": np.float32(-0.1)}, "Q has a scale that is not a positive number"),
    "no number": ({"scale": np.float32(np.nan)}, "Q has a scale that is not a positive number"),
    "infinite": ({"scale": np.float32(np.inf)}, "Q has a scale that is not a positive number"),
    "activation per channel": (
        {"scale": np.full(8, 0.01, np.float32), "zero": np.zeros(8, np.int8)},
        "Q quantises an activation per channel; only weights may be",
    ),
    "weights along their input": ({"axis": 1}, "WDQ has a scale per channel along axis 1, not 0"),
    "uint8 weights": ({"weights": np.uint8}, "WDQ dequantises uint8; only int8 is supported"),
    "int32 bias": (
        {"bias": True},
        "BDQ dequantises int32; only int8 is supported, and biases must stay",
    ),
    "before the activation": ({"after": True}, "Q2 is between conv and its activation"),
}


def convolution(
    path,
    *,
    op="Conv",
    scale=np.float32(0.01),  # noqa: B008
    zero=np.int8(0),  # noqa: B008
    computed="",
    axis=0,
    weights=np.int8,
    bias=False,
    after=False,
) -> onnx.ModelProto:
    """A valid ONNX graph of one layer, "conv": right by default."""
    random = np.random.default_rng(0)
    matrix = op in {"MatMul", "Gemm"}
    shape = [4, 8] if matrix else SHAPE
    kernel = random.integers(0, 100, (8, 8) if matrix else (8, 8, 3, 3)).astype(weights)
    values = {"scale": scale, "zero": zero, "w": kernel, "ws": np.full(8, 0.01, np.float32)}
    nodes = []
    if computed:
        nodes.append(helper.make_node("ReduceMean", ["images"], ["mean"], "mean", keepdims=0))
        kind = onnx.TensorProto.FLOAT if computed == "scale" else onnx.TensorProto.INT8
        nodes.append(helper.make_node("Cast", ["mean"], [computed], "cast", to=kind))
        del values[computed]
    how = ["scale"] if zero is None else ["scale", "zero"]
    taken = ["d", "wd"]
    nodes += [
        helper.make_node("QuantizeLinear", ["images", *how], ["q"], "Q", axis=1),
        helper.make_node("DequantizeLinear", ["q", *how], ["d"], "DQ", axis=1),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], "WDQ", axis=axis),
    ]
    if bias:
        values |= {"b": np.ones(8, np.int32), "bs": np.full(8, 1e-4, np.float32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], "BDQ", axis=0))
        taken.append("bd")
    pads = {} if matrix else {"pads": [1, 1, 1, 1]}
    nodes.append(helper.make_node(op, taken, ["c"], "conv", **pads))
    last = "c"
    if after:
        values |= {"s2": np.float32(0.1), "z2": np.int8(0)}
        nodes += [
            helper.make_node("QuantizeLinear", ["c", "s2", "z2"], ["cq"], "Q2"),
            helper.make_node("DequantizeLinear", ["cq", "s2", "z2"], ["cd"], "DQ2"),
        ]
        last = "cd"
    nodes.append(helper.make_node("Relu", [last], ["out"], "relu"))
    constants = [constant(name, value) for name, value in values.items() if value is not None]
    save(path, nodes, [("images", shape)], [("out", shape)], constants, opset=19)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(tmp_path, fault):
    changes, sentence = FAULTS[fault]
    with pytest.raises(UnsupportedModel, match=re.escape(sentence)):
        validate(convolution(tmp_path / "m.onnx", **changes))


def test_what_is_right_passes(tmp_path, network):
    validate(convolution(tmp_path / "m.onnx"))
    for op in ("ConvTranspose", "MatMul", "Gemm"):
        validate(convolution(tmp_path / "m.onnx", op=op, axis=1))
    validate(onnx.load(network))


def test_many_faults_are_counted_and_few_are_shown(tmp_path):
    changes = {"zero": np.uint8(128), "bias": True, "axis": 1, "after": True}
    with pytest.raises(UnsupportedModel, match="5 faults") as refused:
        validate(convolution(tmp_path / "m.onnx", **changes))
    assert str(refused.value).count(";") == 2
