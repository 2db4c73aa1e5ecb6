"""TensorRT takes what Fovea writes, for two GPUs that are not here, and as it is written."""

import re
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.qat import quantised_in_training
from tests.engines.quantization.test_quantisation import FAULTS, SHAPE, convolution
from tests.engines.real import DETECTORS, OTHERS, prepared, ranges
from tests.engines.rtx import Compiled, compile_graph
from tests.engines.tiny import constant, save

from fovea_engines.backends.backend import Encoding
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantisable, quantise
from fovea_engines.quantization.recode import recode

pytestmark = [pytest.mark.real, pytest.mark.slow]

REAL = pytest.mark.parametrize("name", [*DETECTORS, *OTHERS])
# One engine for both, as a build has it that names both.
GPUS = "SM80,SM89"

# Exact, as every scale is a float16 (see `test_no_scale_is_rounded`).
WIDENED = re.compile(r"\(foreignNode\) Converting conv (activation|weight) scales to fp32\.")
# A Resize has an empty input where others have a region of interest.
EMPTY = re.compile(
    r"WeightsContext\.cpp:\d+: Empty initializer \S+ was provided with non-empty data"
)

# Convolutions that stay float32: the mean of DFL, and one of a large bias.
IN_FLOAT32 = {"yolov8n": 1, "yolov10n": 1, "yolov8n-pose": 1, "yolov8n-seg-320": 1, "u2netp": 1}


def signed(shared, name) -> onnx.ModelProto:
    return quantise(prepared(shared, name).graph, ranges(shared, name), Encoding.SIGNED)


def listed(found: Compiled) -> Counter:
    """Convolutions by precision, as the layer list has them."""
    types = {"float32": "float", "float16": "half", "int8": "int8"}
    layers = found.plan.layers.layers
    return Counter(types[one.precision] for one in layers if one.type == "convolution")


@pytest.mark.parametrize("name", ["yolov10n", "yolox_nano", "mobilenetv2"])
def test_float32(shared, name):
    """Of some: those of float16 have the same nodes, with casts beside them."""
    found = compile_graph(prepared(shared, name).graph, GPUS)
    assert found.engine, found.messages
    assert [message for message in found.messages if not EMPTY.match(message)] == []
    assert found.convolutions.keys() == listed(found).keys() == {"float"}


@REAL
def test_float16(shared, name):
    found = compile_graph(to_half(prepared(shared, name).graph), GPUS)
    assert found.engine, found.messages
    assert [message for message in found.messages if not EMPTY.match(message)] == []
    kinds = found.convolutions
    # TensorRT makes one of two that take the same tensor.
    assert listed(found)["half"] >= kinds["half"]
    assert listed(found)["float"] == kinds["float"]
    assert kinds.pop("float", 0) == IN_FLOAT32.get(name, 0)
    assert kinds.keys() == {"half"}


@REAL
def test_int8_with_float16_around_it(shared, name):
    found = compile_graph(to_half(signed(shared, name)), GPUS)
    assert found.engine, found.messages
    messages = Counter(WIDENED.sub(r"\1", message) for message in found.messages)
    layers = len(quantisable(prepared(shared, name).graph)) - (name == "u2netp")
    assert messages.pop("activation") == messages.pop("weight") == layers
    assert [message for message in messages if not EMPTY.match(message)] == []
    kinds = found.convolutions
    assert listed(found) == kinds
    assert kinds["int8"] == layers
    assert kinds["float"] == IN_FLOAT32.get(name, 0)


@REAL
def test_no_scale_is_rounded(shared, name):
    """Neither to float16 in the graph nor back in TensorRT."""

    def scales(model: onnx.ModelProto) -> dict[str, np.ndarray]:
        values = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
        pairs = ("QuantizeLinear", "DequantizeLinear")
        return {n.name: values[n.input[1]] for n in model.graph.node if n.op_type in pairs}

    exact, half = scales(signed(shared, name)), scales(to_half(signed(shared, name)))
    assert exact.keys() == half.keys()
    for node, scale in exact.items():
        assert (scale.dtype, half[node].dtype) == (np.float32, np.float16)
        np.testing.assert_array_equal(half[node].astype(np.float32), scale)


def test_a_model_that_came_quantised(shared):
    graph = prepared(shared, "yolov5n").graph
    layers = quantisable(graph)[4:]
    trained = normalise(quantised_in_training(graph, ranges(shared, "yolov5n"), layers))
    found = compile_graph(to_half(recode(trained, Encoding.SIGNED)), "SM89")
    assert found.convolutions == {"int8": len(layers), "half": 60 - len(layers)}
    assert {WIDENED.sub("", message) for message in found.messages} == {""}


def test_a_layer_of_float32_stays_one(tmp_path):
    """Between two casts it would not: TensorRT takes that for a layer of float16."""
    nodes, source = [], "images"
    weights = [constant("w", np.ones((8, 8, 3, 3), np.float32))]
    for name, bias in (("a", 1.0), ("b", 1361.25), ("out", 1.0)):
        weights.append(constant(f"{name}.bias", np.full(8, bias, np.float32)))
        taken = [source, "w", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", taken, [f"{name}.c"], f"{name}.c", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"{name}.c"], [name], name))
        source = name
    path = save(
        tmp_path / "m.onnx", nodes, [("images", SHAPE)], [("out", SHAPE)], weights, opset=19
    )
    found = compile_graph(to_half(onnx.load(path)), "SM89")
    assert found.convolutions == {"half": 2, "float": 1}


REFUSED = {
    "uint8 around 128", "another zero point", "computed zero point", "scale 0", "negative scale",
    "no number", "uint8 weights", "int32 bias",
}  # fmt: skip
# What it reads as int8, though it is uint8.
MISREAD = {"uint8", "no zero point"}
# What it computes in float32.
SLOW = {"activation per channel", "weights along their input"}
# "computed scale" ends the process; an infinite one, and a pair before the activation, it takes.


@pytest.mark.parametrize("fault", sorted(REFUSED))
def test_what_is_refused(tmp_path, fault):
    changes, _ = FAULTS[fault]
    found = compile_graph(convolution(tmp_path / "m.onnx", **changes), "SM89")
    assert found.engine is None
    assert found.messages


@pytest.mark.parametrize("fault", sorted(MISREAD))
def test_what_is_read_as_something_else(tmp_path, fault):
    changes, _ = FAULTS[fault]
    found = compile_graph(convolution(tmp_path / "m.onnx", **changes), "SM89")
    assert found.convolutions == {"int8": 1}


@pytest.mark.parametrize("fault", sorted(SLOW))
def test_what_is_computed_in_float32(tmp_path, fault):
    changes, _ = FAULTS[fault]
    found = compile_graph(convolution(tmp_path / "m.onnx", **changes), "SM89")
    assert found.convolutions == {"float": 1}


def test_turing_has_no_int8_and_takes_it_from_others(shared):
    """Why `fovea build` refuses it."""
    graph = to_half(signed(shared, "yolov5n"))
    assert compile_graph(graph, "SM75,SM89").convolutions.keys() == {"half"}
