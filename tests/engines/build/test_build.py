"""From an ONNX file to a published engine."""

import hashlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import text_format
from onnx import helper
from tests.engines.tiny import METADATA, constant, save, tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
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
    assert list(progress.seconds) == ["load", "normalise", "head", "compile", "agreement"]
    assert card.build_seconds == progress.seconds
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card == card
        rows = np.zeros((max_batch, 3, 64, 96), np.float32)
        assert engine.session.infer({"images": rows})["output0"].shape == (max_batch, 7, 126)


@pytest.mark.parametrize(("batch", "max_batch"), [("n", 1), ("n", 4), (1, 1)])
def test_clients_see_the_same_shapes_whichever_backend_serves(tmp_path, batch, max_batch):
    model = tiny_detector(tmp_path / "m.onnx", batch=batch)
    found = []
    for backend in BACKENDS:
        build(BuildPlan(model, backend, tmp_path / "r", backend, max_batch=max_batch))
        one = config(tmp_path / "r", backend)
        found.append((one.max_batch_size, list(one.input), list(one.output)))
    assert found[0] == found[1]
    assert found[0][0] == (0 if batch == 1 else max_batch)


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
    with pytest.raises(InvalidOption, match="dynamic batch"):
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
    assert "can be of models of any kind: say --head image or" in card.reason
    assert "--head semantic" in card.reason
    assert card.preprocess_from.startswith("a guess: that of YOLO")
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


def test_a_full_disk_leaves_the_repository_as_it_was(built_repository, tmp_path):
    """A limit on file size stands in for a full disk: the write itself fails."""
    repository = tmp_path / "r"
    shutil.copytree(built_repository, repository)
    before = sorted(p for p in repository.rglob("*"))
    model = tiny_detector(tmp_path / "m.onnx", seed=2)
    code = (
        "import resource, sys, pathlib\n"
        "from fovea_engines.build.build import build\n"
        "from fovea_engines.build.plan import BuildPlan\n"
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
