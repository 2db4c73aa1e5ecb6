"""Exports whose outputs have no axis for the batch are decoded as those that have it."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.conftest import DEMO
from tests.engines.tiny import constant, save, tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow

CHARACTERS = tuple("abc")


def squeezed(source, path):
    """Squeeze the first axis out of all outputs of a model of one image."""
    model = onnx.load(source)
    model.graph.initializer.append(constant("first", np.array([0])))
    for value in model.graph.output:
        inner = f"{value.name}/whole"
        for node in model.graph.node:
            node.output[:] = [inner if name == value.name else name for name in node.output]
        model.graph.node.append(helper.make_node("Squeeze", [inner, "first"], [value.name]))
        del value.type.tensor_type.shape.dim[0]
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    return path


def reader(path):
    """Write an LPRNet of three characters and none, whose steps are those of the image's colour."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colour"]),
        helper.make_node("MatMul", ["colour", "matrix"], ["mixed"]),
        helper.make_node("Reshape", ["mixed", "shape"], ["logits"]),
    ]
    matrix = np.random.default_rng(3).normal(0, 3, (3, 4 * 18)).astype(np.float32)
    weights = [constant("matrix", matrix), constant("shape", np.array([-1, 4, 18]))]
    images = [("images", [1, 3, 24, 94])]
    return save(path, nodes, images, [("logits", [1, 4, 18])], weights)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("kind", ["detector", "reader", "text"])
def test_it_answers_as_with_its_batch(tmp_path, kind, backend):
    given, image = {}, read_image(DEMO / "scene-1.jpg")
    match kind:
        case "detector":
            source = tiny_detector(tmp_path / "m.onnx", batch=1)
        case "reader":
            source = reader(tmp_path / "m.onnx")
            given = {"family": "lprnet", "labels": CHARACTERS, "preprocess": {}}
        case "text":
            source, image = DEMO / "plates-read.onnx", read_image(DEMO / "plate.jpg")
    bare = squeezed(source, tmp_path / "bare.onnx")
    results = []
    for name, file in (("whole", source), ("bare", bare)):
        card = build(BuildPlan(file, name, tmp_path / "r", backend, **given))
        with Engine.open(tmp_path / "r" / name / "1") as engine:
            results.append(engine.predict(image))
    assert card.reason.endswith(
        "its outputs have no axis for the batch, which a build adds in front"
    )
    assert card.outputs[0].shape[0] == 1
    whole, found = results
    assert whole.arrays
    for one, other in zip(whole.arrays, found.arrays, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_what_nothing_decodes_stays_as_it_is(tmp_path):
    source = squeezed(reader(tmp_path / "m.onnx"), tmp_path / "bare.onnx")
    card = build(BuildPlan(source, "m", tmp_path / "r", "onnxruntime"))
    assert (card.family, card.outputs[0].shape) == (None, (4, 18))
    assert "say --head ctc-logits or --head lprnet" in card.reason
    with pytest.raises(UnsupportedModel, match="not of family yolov8"):
        build(BuildPlan(source, "other", tmp_path / "r", "onnxruntime", family="yolov8"))


def test_inspect_shows_what_a_build_makes_of_it(fovea, tmp_path):
    source = squeezed(tiny_detector(tmp_path / "m.onnx", batch=1), tmp_path / "bare.onnx")
    file = json.loads(fovea("inspect", source, "--json")[1])
    assert file["family"] == "yolov8"
    assert file["reason"].endswith("which a build adds in front")
