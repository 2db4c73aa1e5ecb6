"""Shapes of outputs: what follows the batch, and what does not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.tiny import constant

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_preprocess.errors import InvalidOption


def network(path, nodes, kind=TensorProto.FLOAT):
    weights = [
        constant("zero", np.float32(0)),
        constant("flat", np.array([-1, 192])),
        constant("fixed", np.array([1, -1, 192])),
    ]
    image = helper.make_tensor_value_info("images", 1, ["batch", 3, 8, 8])
    out = helper.make_tensor_value_info("out", kind, ["rows", "columns"])
    graph = helper.make_graph(nodes, "shapes", [image], [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def bright(path):
    """Write a model that returns the place of each positive value: [k, 4], from any image."""
    nodes = [
        helper.make_node("Greater", ["images", "zero"], ["lit"]),
        helper.make_node("NonZero", ["lit"], ["places"]),
        helper.make_node("Transpose", ["places"], ["out"], perm=[1, 0]),
    ]
    return network(path, nodes, TensorProto.INT64)


def test_a_dimension_that_is_the_same_for_any_batch_is_known(tmp_path):
    path = network(tmp_path / "m.onnx", [helper.make_node("Reshape", ["images", "flat"], ["out"])])
    [out] = graph_outputs(normalise(load(path).proto))
    assert out.shape == (-1, 192)


def test_rows_of_all_images_together_are_served_one_image_at_a_time(tmp_path):
    notes = []
    model = normalise(load(bright(tmp_path / "m.onnx")).proto, note=notes.append)
    assert graph_inputs(model)[0].shape == (1, 3, 8, 8)
    assert graph_outputs(model)[0].shape == (-1, 4)
    assert "one image at a time: output out" in notes[0]
    with pytest.raises(InvalidOption, match="--max-batch 4 cannot be"):
        build(BuildPlan(tmp_path / "m.onnx", "m", tmp_path / "r", max_batch=4))


def test_a_batch_that_the_exporter_wrote_down_is_no_batch(tmp_path):
    nodes = [helper.make_node("Reshape", ["images", "fixed"], ["out"])]
    model = normalise(load(network(tmp_path / "m.onnx", nodes)).proto)
    assert graph_inputs(model)[0].shape == (1, 3, 8, 8)
    assert graph_outputs(model)[0].shape == (1, 1, 192)
