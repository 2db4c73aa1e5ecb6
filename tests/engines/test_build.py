"""From an ONNX file to a published engine."""

import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import helper

from fovea_engines.agreement.identity import IdentityCheck, compare_detections
from fovea_engines.agreement.samples import Sample
from fovea_engines.build import build
from fovea_engines.detections import Detections
from fovea_engines.engine import Engine
from fovea_engines.heads.yolov10 import YoloV10
from fovea_engines.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.proof import check_agreement
from fovea_engines.repository import ModelRepository
from fovea_engines.triton_messages import model_config_messages
from fovea_preprocess.errors import (
    BackendUnavailable,
    Disagreement,
    InvalidOption,
    UnsupportedModel,
)

from .sabotage import scale_weight
from .tiny import METADATA, constant, save, tiny_detector

BACKENDS = ("onnxruntime", "openvino")


def config(repository, name):
    text = (repository / name / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_messages().ModelConfig())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("batch", "max_batch"), [("n", 1), ("n", 4), (1, 1)])
def test_builds_for_each_backend(tmp_path, backend, batch, max_batch):
    model = tiny_detector(tmp_path / "m.onnx", batch=batch, size=("h", "w"))
    progress = Progress()
    plan = BuildPlan(model, "m", tmp_path / "r", backend, size=(64, 96), max_batch=max_batch)
    card = build(plan, progress)
    assert (card.backend, card.max_batch, card.family) == (backend, max_batch, "yolov8")
    assert card.labels == ("cat", "dog", "bus")
    assert card.metadata == METADATA
    assert card.onnx_sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
    assert (card.preprocess.height, card.preprocess.width) == (64, 96)
    assert card.agreement.images == 3
    assert card.agreement.detections >= 60
    assert card.agreement.box_px < 0.01
    assert list(progress.seconds) == ["load", "normalise", "compile", "agreement"]
    assert card.build_seconds == progress.seconds
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card == card
        rows = np.zeros((max_batch, 3, 64, 96), np.float32)
        assert engine.session.infer({"images": rows})["output0"].shape == (max_batch, 7, 126)


def test_the_same_again_builds_nothing(tiny_model, tmp_path):
    plan = BuildPlan(tiny_model, "m", tmp_path / "r")
    first, again = build(plan), build(plan)
    assert again == first
    assert ModelRepository(tmp_path / "r").versions("m") == (1,)
    other = build(BuildPlan(tiny_model, "m", tmp_path / "r", labels=("a", "b", "c")))
    assert other.labels == ("a", "b", "c")
    assert ModelRepository(tmp_path / "r").versions("m") == (1, 2)


def test_config_and_labels_follow_until_they_are_edited(tiny_model, tmp_path):
    repository = tmp_path / "r"
    beside = repository / "m"
    build(BuildPlan(tiny_model, "m", repository, "onnxruntime"))
    assert config(repository, "m").max_batch_size == 1
    assert (beside / "labels.txt").read_text() == "cat\ndog\nbus\n"
    build(BuildPlan(tiny_model, "m", repository, "onnxruntime", max_batch=4))
    assert config(repository, "m").max_batch_size == 4
    (beside / "labels.txt").write_text("mine\n")
    (beside / "config.pbtxt").write_text("max_batch_size: 2\n")
    build(BuildPlan(tiny_model, "m", repository, "onnxruntime", max_batch=8))
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
    with pytest.raises(UnsupportedModel, match="dynamic batch"):
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
    with pytest.raises(Disagreement, match="raw output"):
        build(BuildPlan(model, "m", tmp_path / "r", "onnxruntime", max_batch=2))
    assert ModelRepository(tmp_path / "r").versions("m") == (1,)


def test_an_unknown_head_is_built_and_says_so(tmp_path):
    shape = ["n", 3, 32, 32]
    relu = helper.make_node("Relu", ["images"], ["out"])
    model = save(tmp_path / "m.onnx", [relu], [("images", shape)], [("out", shape)])
    card = build(BuildPlan(model, "m", tmp_path / "r"))
    assert card.family is None
    assert card.preprocess.row_shape == (3, 32, 32)
    assert "serves tensors" in card.reason
    assert card.agreement.detections == 0
    assert card.agreement.output_error < 1e-5
    with Engine.open(tmp_path / "r" / "m" / "1") as engine, pytest.raises(UnsupportedModel):
        engine.detect(np.zeros((8, 8, 3), np.uint8))


def test_labels_and_family_must_fit(tiny_model, tmp_path):
    with pytest.raises(InvalidOption, match=r"2 labels .* 3 classes"):
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


def test_an_engine_of_other_weights_disagrees(built_repository, tmp_path):
    other = tiny_detector(tmp_path / "other.onnx", seed=1)
    with (
        Engine.open(built_repository / "tiny" / "1") as engine,
        pytest.raises(Disagreement, match=r"astronaut\.jpg the source model finds class \d at \["),
    ):
        check_agreement(engine, other)


def test_a_disagreement_says_what_differs_and_by_how_much():
    def found(*rows):
        array = np.array(rows, np.float32).reshape(-1, 6)
        return Detections(array[:, :4], array[:, 4], array[:, 5].astype(np.int32))

    want = found([10, 10, 50, 50, 0.9, 1], [5, 5, 9, 9, 0.045, 0])
    near = found([10.5, 10, 50, 50, 0.895, 1])
    box_px, score = compare_detections("bus.jpg", want, near, 0.05)
    assert box_px == pytest.approx(0.5)
    assert score == pytest.approx(0.005, abs=1e-6)
    for have, says in (
        (found([12, 10, 50, 50, 0.9, 1]), r"bus\.jpg .* class 1 at \[10\.0 .* 2\.00 px"),
        (found([10, 10, 50, 50, 0.88, 1]), r"0\.020 off"),
        (found([10, 10, 50, 50, 0.9, 2]), "none of that class"),
        (found(), "none of that class"),
        (found(*[[10, 10, 50, 50, 0.9, 1], [60, 60, 70, 70, 0.5, 1]]), "the engine finds"),
    ):
        with pytest.raises(Disagreement, match=says):
            compare_detections("bus.jpg", want, have, 0.05)


@pytest.mark.parametrize(
    ("best", "score", "px", "agrees"),
    [
        (0.9, 0.25, 0.9, True),  # from .25 on a box counts in full
        (0.9, 0.25, 1.1, False),
        (0.9, 0.05, 4.5, True),  # under that in proportion to its score
        (0.9, 0.05, 5.5, False),
        (0.9, 0.02, 10.0, True),
        (0.02, 0.02, 0.9, True),  # where nothing scores more, the best box counts in full
        (0.02, 0.02, 1.1, False),
        (0.02, 0.01, 1.9, True),
    ],
)
def test_a_box_is_weighted_by_its_score(best, score, px, agrees):
    def found(shift):
        boxes = np.array([[10, 10, 50, 50], [90 + shift, 90, 150, 150]], np.float32)
        return Detections(boxes, np.float32([best, score]), np.array([0, 1], np.int32))

    if agrees:
        box_px, _ = compare_detections("bus.jpg", found(0), found(px), score)
        assert box_px == pytest.approx(px * min(1, score / min(0.25, best)), abs=1e-4)
    else:
        with pytest.raises(Disagreement, match=r"1\.10 px \(weighted by score\)"):
            compare_detections("bus.jpg", found(0), found(px), score)


def test_what_just_reaches_the_threshold_has_its_partner_under_it():
    """Its score decides what is compared, so that the engine's may be less by a rounding error."""

    def answer(least):
        rows = np.zeros((1, 30, 6), np.float32)
        for i in range(20):
            rows[0, i] = (10, 10 * i, 40, 10 * i + 9, 0.04 - i * 0.001, 0)
        rows[0, 19, 4] = least
        rows[0, 20] = (10.95, 190, 40, 199, 0.0209, 0)
        return {"out": rows}

    check = IdentityCheck(YoloV10("out"))
    sample = Sample("bus.jpg", np.zeros((1, 3, 8, 8), np.float32), answer(np.float32(0.021)))
    assert list(check.each([(sample, answer(np.nextafter(np.float32(0.021), np.float32(0))))]))
    assert check.detections == 20
    assert check.box_px == 0
    assert check.score < 1e-8


def test_a_full_disk_leaves_the_repository_as_it_was(built_repository, tmp_path):
    """A limit on file size stands in for a full disk: the write itself fails."""
    repository = tmp_path / "r"
    shutil.copytree(built_repository, repository)
    before = sorted(p for p in repository.rglob("*"))
    model = tiny_detector(tmp_path / "m.onnx", seed=2)
    code = (
        "import resource, sys, pathlib\n"
        "from fovea_engines.build import build\n"
        "from fovea_engines.plan import BuildPlan\n"
        "from fovea_preprocess.errors import BuildError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    build(BuildPlan(pathlib.Path(sys.argv[1]), 'tiny', pathlib.Path(sys.argv[2]),\n"
        "          'onnxruntime'))\n"
        "except BuildError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(model), str(repository)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "nothing was published" in run.stdout
    assert sorted(p for p in repository.rglob("*")) == before


def test_outputs_of_integers_may_all_be_zero(tmp_path):
    nodes = [
        helper.make_node("Mul", ["images", "zero"], ["none"]),
        helper.make_node("Cast", ["none"], ["out"], to=onnx.TensorProto.INT32),
    ]
    shape = [1, 3, 32, 32]
    model = save(
        tmp_path / "m.onnx", nodes, [("images", shape)], [("out", shape)],
        [constant("zero", np.float32(0))],
    )  # fmt: skip
    zeros = onnx.load(model)
    zeros.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(zeros, model)
    card = build(BuildPlan(model, "m", tmp_path / "r"))
    assert card.agreement.output_error == 0


@pytest.mark.parametrize("name", ["yolox_nano", "yolov8n", "yolov10n", "mobilenetv2"])
def test_real_models_agree(shared, tmp_path, name):
    card = build(BuildPlan(shared / "models" / f"{name}.onnx", name, tmp_path))
    assert card.agreement is not None
    if name == "mobilenetv2":
        assert card.family is None
        assert card.agreement.output_error < 1e-4
    else:
        assert card.agreement.detections >= 60
        assert card.agreement.box_px < 0.002
        assert card.agreement.score < 1e-4
    assert json.loads((tmp_path / name / "1" / "card.json").read_text())["name"] == name


@pytest.mark.parametrize("name", ["yolov5n", "yolov8n", "yolov10n", "yolox_nano"])
@pytest.mark.parametrize("place", [0.1, 0.5])
def test_a_real_engine_with_one_wrong_layer_disagrees(shared, tmp_path, name, place):
    source = shared / "models" / f"{name}.onnx"
    model = onnx.load(source)
    convs = sum(node.op_type == "Conv" for node in model.graph.node)
    scale_weight(model, int(place * convs), 1.02)
    (tmp_path / "wrong" / "1").mkdir(parents=True)
    onnx.save(model, tmp_path / "wrong" / "1" / "model.onnx")
    with (
        Engine.open(tmp_path / "wrong" / "1") as engine,
        pytest.raises(Disagreement, match=r"on \w+\.jpg the (source model|engine) finds class"),
    ):
        check_agreement(engine, source)
