"""Detectors with attention: what of them is INT8, and what TensorRT for RTX makes of them."""

from collections import Counter
from functools import cache

import numpy as np
import onnx
import pytest
from tests.conftest import SHARED

from fovea_engines.backends.backend import Encoding
from fovea_engines.backends.registry import get_backend, open_session
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.evaluation.samples import image_files
from fovea_engines.onnx_graph.wiring import Wiring, tensors_after
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import Images, calibrate
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantise
from fovea_engines.quantization.ranges import Origin

pytestmark = pytest.mark.real

FILES = ("rtdetrv2", "dfine", "rfdetr")
BODIES = {"rtdetrv2": 8, "dfine": 6, "rfdetr": 3}
"""Projections of tokens, before any choice of queries; the backbone of this RF-DETR is narrow."""


@cache
def quantised(name, encoding=Encoding.SIGNED) -> onnx.ModelProto:
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


@pytest.mark.parametrize("name", FILES)
def test_attention_and_what_comes_after_a_choice_stay_float(name):
    graph = quantised(name).graph
    integers = {one for n in graph.node if n.op_type == "DequantizeLinear" for one in n.output}
    found = Counter(node.op_type for node in takers(graph))
    assert found.keys() <= {"Conv", "MatMul", "Gemm"}
    assert found["MatMul"] + found["Gemm"] == BODIES[name]
    assert all(set(node.input[:2]) <= integers for node in takers(graph))
    choices = {name for node in graph.node if node.op_type == "TopK" for name in node.input}
    scores = Wiring(quantised(name)).last_layers(choices)
    assert scores
    assert scores.isdisjoint(node.name for node in takers(graph) if node.op_type != "Conv")
    assert tensors_after(quantised(name), {"TopK", "GridSample"}).isdisjoint(integers)


def test_openvino_takes_levels_that_are_joined(tmp_path):
    """It fails where tokens of several levels are quantised after they are joined."""
    graph = quantised("rtdetrv2", Encoding.UNSIGNED)
    file = get_backend("openvino").compile(graph.SerializeToString(), tmp_path)
    row = np.zeros((1, 3, 320, 320), np.float32)
    with open_session("openvino", file, max_batch=1) as session:
        found = session.infer({graph.graph.input[0].name: row})
    assert all(np.isfinite(one).all() for one in found.values())


@pytest.mark.parametrize("name", FILES)
def test_tensorrt_takes_them(name):
    from tests.engines.rtx import compile_graph

    found = compile_graph(to_half(quantised(name)), "SM89")
    assert found.engine, found.messages
    convolutions = [node for node in takers(quantised(name).graph) if node.op_type == "Conv"]
    assert found.convolutions["int8"] == len(convolutions)


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
