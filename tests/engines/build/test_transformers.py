"""Detectors with attention: what of them is INT8, and what TensorRT for RTX makes of them."""

from functools import cache

import onnx
import pytest
from tests.conftest import SHARED

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.calibration.calibrate import Images, calibrate
from fovea_engines.build.calibration.ranges import Origin
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.precision.half import to_half
from fovea_engines.build.precision.qdq import quantise
from fovea_engines.build.prepare import prepare
from fovea_engines.evaluate.samples import image_files
from fovea_engines.graph.wiring import tensors_after
from fovea_engines.progress import Progress

FILES = ("rtdetrv2", "dfine", "rfdetr")
FLOAT = {"MatMul", "Gemm", "LayerNormalization", "Softmax", "GridSample", "TopK"}


@cache
def quantised(name) -> onnx.ModelProto:
    """As a build for TensorRT writes it, with the ranges of one image."""
    source = SHARED / "models" / "heads" / f"{name}.onnx"
    if not source.is_file():
        pytest.skip(f"the collected models are absent: {source} is not there")
    data = SHARED / "data" / "coco64" / "calibration"
    model = prepare(BuildPlan(source, "m", SHARED, images=data, preprocess={}), Progress())
    images = Images(image_files(data, 1), model.preprocess, "")
    ranges = calibrate(model.graph, images, Origin("", "", "", "minmax"), Progress())
    return quantise(model.graph, ranges, Encoding.SIGNED)


def takers(graph):
    """Return the nodes that compute with integers."""
    integers = {one for n in graph.node if n.op_type == "DequantizeLinear" for one in n.output}
    return [n for n in graph.node if not integers.isdisjoint(n.input)]


@pytest.mark.parametrize("name", FILES)
def test_attention_and_what_comes_after_a_choice_stay_float(name):
    graph = quantised(name).graph
    integers = {one for n in graph.node if n.op_type == "DequantizeLinear" for one in n.output}
    assert {node.op_type for node in takers(graph)} == {"Conv"}
    assert FLOAT & {node.op_type for node in graph.node} >= {"MatMul", "Softmax", "TopK"}
    assert tensors_after(quantised(name), {"TopK", "GridSample"}).isdisjoint(integers)


@pytest.mark.parametrize("name", FILES)
def test_tensorrt_takes_them(name):
    from tests.engines.rtx import compile_graph

    found = compile_graph(to_half(quantised(name)), "SM89")
    assert found.engine, found.messages
    assert found.convolutions["int8"] == len(takers(quantised(name).graph)) > 0


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
