"""Image front and NMS tail through `fovea build`, on the CPU: the same boxes as without."""

import numpy as np
import pytest
from tests.drawn import draw

from fovea_engines.build import graphs
from fovea_engines.build.acceptance import check_fused
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import image_files, read_image
from fovea_preprocess.errors import Disagreement, UnsupportedModel

pytestmark = [pytest.mark.real, pytest.mark.slow]

BACKENDS = pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])


# The smallest on all images, on which test_nms_tail.py has the one that finds most.
@pytest.mark.parametrize(
    ("name", "backend", "images"),
    [
        ("yolov8n", "openvino", 16),
        ("yolov5n", "openvino", 16),
        ("yolox_nano", "openvino", 64),
        ("yolox_nano", "onnxruntime", 64),
    ],
)
def test_real_detectors_find_the_same(shared, tmp_path, name, backend, images):
    source = shared / "models" / f"{name}.onnx"
    plain = BuildPlan(source, "plain", tmp_path, backend)
    whole = BuildPlan(source, "whole", tmp_path, backend, image_front=True, nms_tail=True)
    cards = [build(plan) for plan in (plain, whole)]
    assert cards[1].inputs[0].dtype == "uint8"
    assert cards[1].preprocess.anchor == cards[0].preprocess.anchor
    assert cards[1].agreement == cards[0].agreement
    assert cards[0].content_key != cards[1].content_key
    with Engine.open(tmp_path / "plain/1") as host, Engine.open(tmp_path / "whole/1") as graph:
        for file in image_files(shared / "data" / "coco64" / "val", images):
            want, have = (engine.detect(read_image(file)) for engine in (host, graph))
            np.testing.assert_array_equal(have.class_ids, want.class_ids)
            np.testing.assert_allclose(have.scores, want.scores, atol=1e-4)
            np.testing.assert_allclose(have.boxes, want.boxes, atol=0.01)


def test_a_front_alone_serves_what_is_no_detector(network, tmp_path):
    plan = BuildPlan(network, "n", tmp_path, "onnxruntime", image_front=True)
    card = build(plan)
    assert (card.inputs[0].dtype, card.inputs[0].shape) == ("uint8", (-1, 64, 64, 3))
    build(BuildPlan(network, "plain", tmp_path, "onnxruntime"))
    with Engine.open(tmp_path / "n/1") as engine, Engine.open(tmp_path / "plain/1") as plain:
        pixels = draw(80, 60, 1)
        want, have = plain.outputs_of(pixels)["out"], engine.outputs_of(pixels)["out"]
    np.testing.assert_allclose(have, want, atol=1e-5)


def test_a_tail_for_what_has_no_boxes_is_refused(network, tmp_path):
    with pytest.raises(UnsupportedModel, match="is for detectors"):
        build(BuildPlan(network, "n", tmp_path, "onnxruntime", nms_tail=True))


@BACKENDS
def test_a_tail_that_finds_something_else_is_refused(
    deep_detector, images, tmp_path, monkeypatch, backend
):
    """As one that suppresses at another overlap would."""
    right = graphs.add_nms_tail
    monkeypatch.setattr(graphs, "add_nms_tail", lambda graph, head: right(graph, head, iou=0.1))
    plan = BuildPlan(deep_detector, "d", tmp_path, backend, images=images, nms_tail=True)
    with pytest.raises(Disagreement, match=r"NMS tail in the graph \d.*--no-nms-tail"):
        build(plan)
    assert not (tmp_path / "d" / "1").exists()


class Answers:
    """An engine without a head that gives the same outputs for every image."""

    head = None

    def __init__(self, **outputs):
        self._outputs = {name: np.asarray(array) for name, array in outputs.items()}

    def outputs_of(self, pixels):
        return self._outputs


@pytest.mark.parametrize(
    ("want", "have"),
    [
        ({"flags": [True, False]}, {"flags": [True, False]}),
        ({"a": [1.0, -np.inf, np.nan]}, {"a": [1.0, -np.inf, np.nan]}),
        ({"a": np.uint8([200])}, {"a": np.uint8([199])}),
    ],
)
def test_outputs_that_hardly_differ_are_the_same(want, have):
    check_fused(Answers(**want), Answers(**have))


@pytest.mark.parametrize(
    ("want", "have"),
    [
        ({"a": np.ones(1000, np.float16) * 1000}, {"a": np.ones(1000, np.float16) * 700}),
        ({"a": np.ones(1000) * 100, "b": [1.0]}, {"a": np.ones(1000) * 100, "b": [-5.0]}),
        ({"a": [1.0, 2.0]}, {"a": [[1.0, 2.0]]}),
        ({"a": [1.0]}, {"a": [np.nan]}),
    ],
)
def test_outputs_that_the_fused_parts_change_are_refused(want, have):
    with pytest.raises(Disagreement, match="of what is found differs"):
        check_fused(Answers(**want), Answers(**have))
