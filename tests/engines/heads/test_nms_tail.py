"""Suppression inside the graph: decodings traced into it, and boxes that no image has."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.opened import assert_identical
from tests.engines.real import run
from tests.engines.tiny import CLASSES, METADATA, constant

from fovea_engines.heads.nms_tail import ROUNDS, add_nms_tail
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.recognition import Recognition
from fovea_engines.heads.traced import Traced
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel

SIDE = 128
CELLS = 336
IMAGE = np.zeros((1, 3, SIDE, SIDE), np.float32)


def saying(*arrays: np.ndarray, opset: int = 19) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A model that says this of every image, and the names of its outputs."""
    names = tuple(f"out{i}" for i in range(len(arrays)))
    outputs = zip(names, arrays, strict=True)
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"{name}/said"], [name]) for name in names],
        "saying",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, IMAGE.shape)],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in outputs
        ],
        [constant(f"{name}/said", array) for name, array in zip(names, arrays, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return model, names


def yolo(raw: np.ndarray, opset: int = 19) -> onnx.ModelProto:
    """A detector of YOLOv8's layout that says this: [1, 4 + classes, cells]."""
    model, _ = saying(raw, opset=opset)
    helper.set_model_props(model, METADATA)
    return model


def recognised(model: onnx.ModelProto) -> Recognition:
    return recognise(graph_inputs(model), graph_outputs(model), metadata_of(model))


def both(raw: np.ndarray, conf: float = 0.25, iou: float = 0.7) -> tuple[Detections, Detections]:
    """What the graph and what the host makes of an output, best 300."""
    model = yolo(raw)
    head = open_head(recognised(model), graph_inputs(model))
    want = head.decode({"out0": raw}, 0, PredictOptions(conf=conf, iou=iou))
    after = add_nms_tail(model, recognised(model), iou=iou)
    onnx.checker.check_model(model, full_check=True)
    [rows] = run(model, IMAGE)
    assert rows.dtype == np.float32
    end = open_head(after, graph_inputs(model))
    return end.decode({"out0": rows}, 0, PredictOptions(conf=conf)), want


def crowd(seed: int, dtype: type = np.float32) -> np.ndarray:
    """Boxes that lie over each other, some of them with equal scores."""
    random = np.random.default_rng(seed)
    centre = random.uniform(20, 60, (2, CELLS))
    size = random.uniform(30, 40, (2, CELLS))
    scores = random.uniform(0, 1, (CLASSES, CELLS)).round(2)
    return np.concatenate([centre, size, scores])[None].astype(dtype)


@pytest.mark.parametrize("iou", [0.0, 0.3, 0.7, 1.0])
def test_a_crowd(iou):
    for seed in range(3):
        have, want = both(crowd(seed), iou=iou)
        assert_identical(have, want)
        assert len(want) > 1
    assert_identical(*both(crowd(0, np.float16), iou=iou))


def chain(links: int) -> np.ndarray:
    """Boxes that each lie over the next one alone, the first best."""
    raw = np.zeros((1, 4 + CLASSES, CELLS), np.float32)
    raw[0, 0, :links] = np.arange(links)
    raw[0, 1:4, :links] = 10
    raw[0, 4, :links] = np.linspace(0.9, 0.5, links)
    return raw


def test_the_longest_chain_that_is_settled():
    have, want = both(chain(ROUNDS + 1))
    assert_identical(have, want)
    assert len(want) == (ROUNDS + 2) // 2


def test_a_longer_chain_costs_duplicates_and_never_a_box():
    have, want = both(chain(30))
    boxes = have.boxes.tolist()
    assert all(box in boxes for box in want.boxes.tolist())
    assert len(want) < len(have) < 30


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_numbers(bad):
    assert len(both(np.full_like(crowd(0), bad), conf=0.0)[0]) == 0
    # Among scores and among boxes.
    for rows in (slice(4, None), slice(4)):
        raw = crowd(0)
        raw[0, rows, ::5] = bad
        assert_identical(*both(raw))


def test_suppressed_rows_are_no_boxes():
    model = yolo(crowd(0))
    add_nms_tail(model, recognised(model))
    [rows] = run(model, IMAGE)
    kept = int((rows[0, :, 4] > 0).sum())
    assert 0 < kept < 300
    assert not rows[0, kept:].any()
    assert (np.diff(rows[0, :, 4]) <= 0).all()
    assert_identical(*both(crowd(0), conf=0.0))


def test_fewer_boxes_than_rows():
    model = yolo(crowd(0))
    after = add_nms_tail(model, recognised(model), max_det=1000)
    assert graph_outputs(model)[0].shape == (1, CELLS, 6)
    assert f"{CELLS} rows" in after.reason
    model = yolo(crowd(0))
    add_nms_tail(model, recognised(model), max_candidates=50)
    assert graph_outputs(model)[0].shape == (1, 50, 6)


def test_an_old_opset_and_a_dynamic_size_are_refused():
    model = yolo(crowd(0), opset=17)
    with pytest.raises(UnsupportedModel, match="17"):
        add_nms_tail(model, recognised(model))
    model = yolo(crowd(0))
    model.graph.output[0].type.tensor_type.shape.dim[2].ClearField("dim_value")
    with pytest.raises(UnsupportedModel, match="--size"):
        add_nms_tail(model, recognised(model))


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
    # It has an objectness score beside the classes.
    "yolov5": [np.concatenate([128 * scores(1, 1008, 4), scores(1, 1008, 4) ** 0.2], axis=2)],
}


@pytest.mark.parametrize("family", OUTPUTS)
def test_boxes_of_the_graph_are_those_of_the_host(family):
    arrays = OUTPUTS[family]
    model, names = saying(*arrays)
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
    model, names = saying(scores(1, 3, 8))
    with pytest.raises(UnsupportedModel, match=rf"the family {family}: .*--no-nms-tail"):
        add_nms_tail(model, Recognition(family, "", "detect", outputs=names))


def test_an_operation_that_is_not_written_is_an_error():
    traced = Traced(Writer("out"), "out", (4, 2))
    with pytest.raises(TypeError):
        np.arctan(traced)
    with pytest.raises(TypeError):
        np.linalg.norm(traced)
