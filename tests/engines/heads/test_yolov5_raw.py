"""YOLOv5n of ../shared/models, cut before its decoding, against the whole model."""

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.engines.real import bus

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

OWN = np.array(FAMILIES["yolov5-raw"].anchors, np.float32).reshape(3, 3, 2)

LEVELS = {f"/model.24/Transpose{end}_output_0": 80 >> i for i, end in enumerate(("", "_1", "_2"))}


def cut(shared, names):
    model = onnx.load(shared / "models" / "yolov5n.onnx")
    del model.graph.output[:]
    for name, side in names.items():
        shape = ["batch", 3, side, side, 85]
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        )
    return model


@pytest.fixture(scope="module")
def model(shared):
    return cut(shared, LEVELS)


def told(model, metadata, family=None):
    inputs, outputs = graph_inputs(model), graph_outputs(model)
    return recognise(inputs, outputs, metadata, family, observe=Observer(model))


def test_the_build_asks_for_the_anchors(model):
    assert told(model, {}).open == ("yolov5-raw", "yolov7-raw")


@pytest.mark.parametrize("family", ["yolov5-raw", "yolov7-raw"])
def test_metadata_tells_them(model, family):
    anchors = np.array(FAMILIES[family].anchors).reshape(3, 3, 2).tolist()
    assert told(model, {"anchors": str(anchors)}).family == family


@pytest.mark.parametrize("anchors", ["[[1, 2]]", "[[1], [2, 3]]", "'text'", "{}"])
def test_other_anchors_are_refused(model, anchors):
    found = told(model, {"anchors": anchors})
    assert found.family is None
    assert "other anchors" in found.reason


def test_boxes_are_those_of_the_whole_model(model, shared):
    row = bus(shared, "yolov5n")
    whole = onnxruntime.InferenceSession(shared / "models" / "yolov5n.onnx")
    parts = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in parts.get_outputs()]
    outputs = dict(zip(names, parts.run(None, {parts.get_inputs()[0].name: row}), strict=True))
    expected = FAMILIES["yolov5"].open(("out",), (640, 640))
    want_from = {"out": whole.run(None, {whole.get_inputs()[0].name: row})[0]}
    head = open_head(told(model, {}, "yolov5-raw"), graph_inputs(model))
    for conf in (0.01, 0.25):
        options = PredictOptions(conf=conf)
        want, found = expected.decode(want_from, 0, options), head.decode(outputs, 0, options)
        assert len(found) == len(want) > 3
        assert found.boxes == pytest.approx(want.boxes, abs=0.01)
        assert found.scores == pytest.approx(want.scores, abs=1e-4)
        assert found.class_ids.tolist() == want.class_ids.tolist()
    assert len(head.decode(outputs, 0, PredictOptions(conf=1))) == 0
    assert len(head.decode(outputs, 0, PredictOptions(conf=0))) == 300
    broken = {name: array * np.nan for name, array in outputs.items()}
    assert len(head.decode(broken, 0, PredictOptions(conf=0))) == 0


def test_levels_after_their_sigmoid_are_refused(shared):
    names = {name.replace("Transpose", "Sigmoid"): side for name, side in LEVELS.items()}
    found = told(cut(shared, names), {})
    assert found.family is None
    assert "no logits" in found.reason


SMALLER = [[[3, 4], [4, 9], [9, 6]], [[7, 16], [17, 9], [15, 19]], [[33, 17], [26, 37], [61, 50]]]
LARGER = [
    [[19, 27], [44, 40], [38, 94]],
    [[96, 68], [86, 152], [180, 137]],
    [[140, 301], [303, 264], [238, 542]],
]


@pytest.mark.parametrize(
    "anchors",
    [
        SMALLER,
        LARGER,
        OWN[..., ::-1].tolist(),
        OWN[::-1].tolist(),
    ],
)
def test_anchors_of_ones_own_are_told_by_the_sizes_of_objects(model, anchors):
    """A model of other anchors gives other logits for the same sizes."""
    seen = []
    ratio = OWN / np.array(anchors)
    for outputs in Observer(model)("yolov5-raw"):
        changed = {}
        for (name, level), factor in zip(outputs.items(), ratio, strict=True):
            level = level.astype(np.float64)
            share = 1 / (1 + np.exp(-level[..., 2:4])) * np.sqrt(factor)[None, :, None, None]
            share = share.clip(1e-6, 1 - 1e-6)
            level[..., 2:4] = np.log(share / (1 - share))
            changed[name] = level.astype(np.float32)
        seen.append(changed)
    found = recognise(graph_inputs(model), graph_outputs(model), {}, observe=lambda _: seen)
    assert found.family is None
    assert not found.open
    assert "it has other anchors" in found.reason
