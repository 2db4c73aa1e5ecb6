"""From an ONNX file to a published engine."""

import hashlib
from dataclasses import replace

import cv2
import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import helper
from tests.conftest import DEMO
from tests.drawn import draw
from tests.engines.tiny import METADATA, constant, save, tiny_detector

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.progress import Progress
from fovea_engines.repository.config_pbtxt import model_config_messages
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import (
    BackendUnavailable,
    Disagreement,
    InvalidOption,
    UnsupportedModel,
)

pytestmark = pytest.mark.slow


def config(repository, name):
    text = (repository / name / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_messages().ModelConfig())


@pytest.mark.parametrize(("batch", "max_batch"), [("n", 1), ("n", 4), (1, 1)])
def test_builds_for_each_backend(tmp_path, batch, max_batch):
    """Clients see the same shapes, whichever serves."""
    model = tiny_detector(tmp_path / "m.onnx", batch=batch, size=("h", "w"))
    configs = []
    for backend in CPU_BACKENDS:
        progress = Progress()
        plan = BuildPlan(
            model, backend, tmp_path / "r", backend, size=(64, 96), max_batch=max_batch
        )
        card = build(plan, progress)
        assert (card.backend, card.max_batch, card.family) == (backend, max_batch, "yolov8")
        assert card.labels == ("cat", "dog", "bus")
        assert card.metadata == METADATA
        assert card.onnx_sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
        assert (card.preprocess.height, card.preprocess.width) == (64, 96)
        assert card.agreement.images == 3
        assert card.agreement.detections >= 60
        assert card.agreement.box_px < 0.01
        assert list(progress.seconds) == ["load", "normalise", "head", "compile", "agreement"]
        assert card.build_seconds == progress.seconds
        written = {path.name for path in (tmp_path / "r" / backend / "1").iterdir()}
        assert written == {"card.json", "card.md", *card.files}
        with Engine.open(tmp_path / "r" / backend / "1") as engine:
            assert engine.card == card
            rows = np.zeros((max_batch, 3, 64, 96), np.float32)
            found = engine.session.infer({"images": rows})["output0"]
            assert found.shape == (max_batch, 7, 126)
        one = config(tmp_path / "r", backend)
        configs.append((one.max_batch_size, list(one.input), list(one.output)))
    assert configs[0] == configs[1]
    assert configs[0][0] == (0 if batch == 1 else max_batch)


def test_config_and_labels_follow_until_they_are_edited(tiny_model, tmp_path):
    repository = tmp_path / "r"
    beside, models = repository / "m", ModelRepository(repository)
    plan = BuildPlan(tiny_model, "m", repository, "onnxruntime")
    first, again = build(plan), build(plan)
    assert again == first
    assert models.versions("m") == (1,)
    assert config(repository, "m").max_batch_size == 1
    assert (beside / "labels.txt").read_text() == "cat\ndog\nbus\n"
    other = build(replace(plan, max_batch=4, labels=("a", "b", "c")))
    assert other.labels == ("a", "b", "c")
    assert models.versions("m") == (1, 2)
    assert config(repository, "m").max_batch_size == 4
    (beside / "labels.txt").write_text("mine\n")
    (beside / "config.pbtxt").write_text("max_batch_size: 2\n")
    build(replace(plan, max_batch=8))
    assert (beside / "labels.txt").read_text() == "mine\n"
    assert (beside / "config.pbtxt").read_text() == "max_batch_size: 2\n"


def test_config_is_tritons(built_repository, card):
    message = config(built_repository, "tiny")
    assert message.name == "tiny"
    assert message.backend == card.backend
    assert [i.name for i in message.input] == ["images"]
    assert message.output[0].label_filename == "labels.txt"
    # The Ultralytics client evaluates this as a Python literal.
    assert eval(message.parameters["metadata"].string_value) == METADATA


def test_a_static_batch_cannot_be_batched(tmp_path):
    model = tiny_detector(tmp_path / "m.onnx", batch=1)
    with pytest.raises(InvalidOption):
        build(BuildPlan(model, "m", tmp_path / "r", max_batch=2))
    model = tiny_detector(tmp_path / "m.onnx", batch=4)
    with pytest.raises(UnsupportedModel, match="exactly 4"):
        build(BuildPlan(model, "m", tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_a_batch_that_is_only_dynamic_in_name_is_found_out(tmp_path):
    # The mean over the batch: right for one row, wrong for two.
    nodes = [
        helper.make_node("ReduceMean", ["images", "axis"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["images", "mean"], ["out"]),
    ]
    shape = ["n", 3, 32, 32]
    weights = [constant("axis", np.array([0]))]
    model = save(
        tmp_path / "m.onnx", nodes, [("images", shape)], [("out", shape)], weights, opset=18
    )
    build(BuildPlan(model, "m", tmp_path / "r", "onnxruntime"))
    with pytest.raises(Disagreement):
        build(BuildPlan(model, "m", tmp_path / "r", "onnxruntime", max_batch=2))
    assert ModelRepository(tmp_path / "r").versions("m") == (1,)


def test_an_unknown_head_is_built_and_says_so(tmp_path):
    shape = ["n", 3, 32, 32]
    relu = helper.make_node("Relu", ["images"], ["out"])
    model = save(tmp_path / "m.onnx", [relu], [("images", shape)], [("out", shape)])
    card = build(BuildPlan(model, "m", tmp_path / "r"))
    assert card.family is None
    assert card.preprocess.row_shape == (3, 32, 32)
    assert "--head image or" in card.reason
    assert card.preprocess_from.startswith("a guess")
    assert card.agreement.detections == 0
    assert card.agreement.output_error < 1e-5
    with Engine.open(tmp_path / "r" / "m" / "1") as engine, pytest.raises(UnsupportedModel):
        engine.detect(np.zeros((8, 8, 3), np.uint8))


def test_labels_and_family_must_fit(tiny_model, tmp_path):
    with pytest.raises(InvalidOption, match="2 labels"):
        build(BuildPlan(tiny_model, "m", tmp_path / "r", labels=("a", "b")))
    with pytest.raises(UnsupportedModel, match="yolox"):
        build(BuildPlan(tiny_model, "m", tmp_path / "r", family="yolox"))
    assert ModelRepository(tmp_path / "r").versions("m") == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "../m"), ("max_batch", 0), ("max_batch", 1025), ("size", (0, 64)), ("backend", "x")],
)
def test_a_plan_is_checked_before_anything_is_done(tiny_model, tmp_path, field, value):
    fields = {"source": tiny_model, "name": "m", "repository": tmp_path / "r"} | {field: value}
    with pytest.raises((InvalidOption, BackendUnavailable)):
        BuildPlan(**fields)


TINY = [1, 3, 8, 8]


@pytest.fixture(scope="module")
def branching(tmp_path_factory):
    """A network that doubles dark images, by a weight that only the branch reads."""
    branches = {
        f"{word}_branch": helper.make_graph(
            [helper.make_node("Mul", ["images", factor], [f"{word}_out"])],
            word,
            [],
            [helper.make_tensor_value_info(f"{word}_out", onnx.TensorProto.FLOAT, TINY)],
        )
        for word, factor in (("then", "one"), ("else", "two"))
    }
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "half"], ["bright"]),
        helper.make_node("If", ["bright"], ["out"], **branches),
    ]
    numbers = {"half": 0.5, "one": 1, "two": 2}
    weights = [constant(name, np.float32(value)) for name, value in numbers.items()]
    path = tmp_path_factory.mktemp("models") / "branching.onnx"
    return save(path, nodes, [("images", TINY)], [("out", TINY)], weights)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_both_branches_are_served(branching, tmp_path, backend):
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "drawn.png"), draw(8, 8, 0))
    build(BuildPlan(branching, "m", tmp_path / "r", backend, images=tmp_path / "images"))
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert not engine.session.steady
        for level, expected in ((50, 100), (200, 200)):
            found = engine.outputs_of(np.full((8, 8, 3), level, np.uint8))["out"]
            np.testing.assert_allclose(found * 255, expected, rtol=1e-5)


def test_what_would_have_to_change_the_branches_is_refused(branching, tmp_path):
    for options in ({"precision": "fp16"}, {"tensorrt": tmp_path / "m.onnx"}):
        with pytest.raises(UnsupportedModel, match="If"):
            build(BuildPlan(branching, "m", tmp_path / "r", **options))


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


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("detector", "onnxruntime"),
        ("detector", "openvino"),
        ("reader", "openvino"),
        ("text", "onnxruntime"),
    ],
)
def test_outputs_without_an_axis_for_the_batch_are_decoded_alike(tmp_path, kind, backend):
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
    assert "no axis for the batch" in card.reason
    assert card.outputs[0].shape[0] == 1
    whole, found = results
    assert whole.arrays
    for one, other in zip(whole.arrays, found.arrays, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_outputs_without_such_an_axis_that_nothing_decodes_stay(tmp_path):
    source = squeezed(reader(tmp_path / "m.onnx"), tmp_path / "bare.onnx")
    card = build(BuildPlan(source, "m", tmp_path / "r", "onnxruntime"))
    assert (card.family, card.outputs[0].shape) == (None, (4, 18))
    assert "--head lprnet" in card.reason
    with pytest.raises(UnsupportedModel):
        build(BuildPlan(source, "other", tmp_path / "r", "onnxruntime", family="yolov8"))
