"""The decoding of heads, traced into a graph, gives the boxes that numpy gives on the host."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.opened import assert_identical
from tests.engines.real import run
from tests.engines.tiny import constant

from fovea_engines.heads.nms_tail import add_nms_tail
from fovea_engines.heads.recognise import Recognition, open_head
from fovea_engines.heads.traced import Traced
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel

SIDE = 128
IMAGE = np.zeros((1, 3, SIDE, SIDE), np.float32)
LEVELS = {8: 256, 16: 64, 32: 16, 64: 4}
RANDOM = np.random.default_rng(0)


def scores(*shape):
    return RANDOM.uniform(0, 1, shape).astype(np.float32)


def logits(*shape):
    return RANDOM.normal(0, 2, shape).astype(np.float32)


def corners(count):
    first = RANDOM.uniform(0, 60, (count, 2))
    return np.hstack([first, first + RANDOM.uniform(10, 60, (count, 2))]).astype(np.float32)


ALL, THREE = sum(LEVELS.values()), list(LEVELS.values())[:3]
OUTPUTS = {
    "picodet-raw": [scores(1, n, 3) for n in LEVELS.values()]
    + [logits(1, n, 32) for n in LEVELS.values()],
    "nanodet-plus": [np.concatenate([scores(1, ALL, 3), logits(1, ALL, 32)], axis=2)],
    "ppyoloe": [corners(336)[None], scores(1, 3, 336)],
    "damo-yolo": [corners(336)[None], scores(1, 336, 3)],
    "centerface": [
        scores(1, 1, 32, 32),
        logits(1, 2, 32, 32) / 3 + 1,
        logits(1, 2, 32, 32) / 9,
        scores(1, 10, 32, 32),
    ],
    # Without a batch, as its exporter fixes it at one image.
    "scrfd": [scores(2 * n, 1) for n in THREE] + [scores(2 * n, 4) * 4 for n in THREE],
}


def saying(arrays) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A model that says this of every image."""
    names = tuple(f"out{i}" for i in range(len(arrays)))
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"{name}/said"], [name]) for name in names],
        "saying",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, IMAGE.shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            for name, array in zip(names, arrays, strict=True)
        ],
        [constant(f"{name}/said", array) for name, array in zip(names, arrays, strict=True)],
    )
    opset = [helper.make_opsetid("", 19)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9), names


@pytest.mark.parametrize("family", OUTPUTS)
def test_boxes_of_the_graph_are_those_of_the_host(family):
    arrays = OUTPUTS[family]
    model, names = saying(arrays)
    told = Recognition(family, "", "detect", outputs=names)
    host = open_head(told, graph_inputs(model))
    want = host.decode(dict(zip(names, arrays, strict=True)), 0, PredictOptions(conf=0.6))
    after = add_nms_tail(model, told)
    onnx.checker.check_model(model, full_check=True)
    assert after.outputs == ("detections" if len(arrays) > 1 else "out0",)
    [rows] = run(model, IMAGE)
    head = open_head(after, graph_inputs(model))
    have = head.decode({after.outputs[0]: rows}, 0, PredictOptions(conf=0.6))
    # The graph gives boxes alone, without the landmarks of faces.
    assert_identical(have, replace(want, keypoints=None))
    assert len(want) > 1


@pytest.mark.parametrize("family", ["fastestdet", "yolov5-raw", "yolov7-raw"])
def test_a_family_that_only_the_host_decodes_is_refused(family):
    model, names = saying([scores(1, 3, 8)])
    with pytest.raises(UnsupportedModel, match=rf"{family} is decoded by the host.*--no-nms-tail"):
        add_nms_tail(model, Recognition(family, "", "detect", outputs=names))


def test_an_operation_that_is_not_written_is_an_error():
    traced = Traced(Writer("out"), "out", (4, 2))
    with pytest.raises(TypeError):
        np.arctan(traced)
    with pytest.raises(TypeError):
        np.linalg.norm(traced)
