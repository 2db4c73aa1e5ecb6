"""A build is compared with the version that it replaces, in the figures that both cards have."""

import json
import re

import pytest
from tests.conftest import DEMO

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_server.rollout.promotion_documents import Promotion
from fovea_server.rollout.record import HistoryRecord

pytestmark = pytest.mark.slow

REPLACED = re.compile(r"Version 2 replaces version 1 \([a-z]+ [a-z0-9]+\)\. To go back: .+\n")


def cards(repository, name):
    return [EngineCard.read(repository / name / str(one) / "card.json") for one in (1, 2)]


def test_a_build_that_replaces_a_version_is_in_the_history(fovea, tiny_model, tmp_path):
    models = ModelRepository(tmp_path / "repository")
    for backend in ("onnxruntime", "openvino", "onnxruntime"):
        code, out, err = fovea("build", tiny_model, "--backend", backend)
        assert (code, "it had" in out) == (0, False), err
    assert "tiny version 1, not served" in out
    assert models.served("tiny") == (2,)
    code, out, err = fovea("rollback", "tiny")
    assert (code, out) == (0, "Version 1 of tiny is current again, in place of version 2.\n"), err
    code, out, err = fovea("build", tiny_model, "--backend", "openvino", "--max-batch", "2")
    assert (code, "Version 1 was promoted and stays current" in out) == (0, True), err
    told = json.loads(fovea("history", "tiny", "--json")[1])
    assert told["current"] == "1"
    built, back = told["events"]
    assert (built["who"], built["version"], built["previous"]) == ("fovea build", "2", "1")
    assert (built["action"], back["action"]) == ("promote", "rollback")


def test_a_promoted_version_stays_current(fovea, tiny_model, tmp_path):
    for backend in ("openvino", "onnxruntime"):
        assert fovea("build", tiny_model, "--backend", backend)[0] == 0
    with HistoryRecord(ModelRepository(tmp_path / "repository"), "tiny") as record:
        event = record.event_of(Promotion(version=1))
        assert event is not None
        record.append(event, "a test", "")
    out = fovea("build", tiny_model, "--backend", "onnxruntime")[1]
    assert "Version 1 was promoted and stays current, for requests that name none.\n" in out
    assert "To change that: fovea promote tiny 2\n" in out
    with HistoryRecord(ModelRepository(tmp_path / "repository"), "tiny") as record:
        event = record.event_of(Promotion(version=2))
        assert event is not None
        record.append(event, "a test", "")
    assert "stays current" not in fovea("build", tiny_model, "--backend", "onnxruntime")[1]


def test_in_accuracy(fovea, tmp_path):
    given = ("build", DEMO / "digits.onnx", "--backend", "onnxruntime")
    assert fovea(*given)[0] == 0
    # The labels are what the first version finds.
    scenes = (DEMO / "scene-1.jpg", DEMO / "scene-2.jpg")
    assert fovea("predict", "digits", *scenes, "--out", "found", "--format", "coco")[0] == 0
    labels = ("--data", "found/predictions.json", "--images", DEMO, "--max-drop", "0.5")
    code, out, err = fovea(*given, "--precision", "int8", "--calibration", DEMO, *labels)
    assert code == 0, err
    accuracy = cards(tmp_path / "repository", "digits")[1].accuracy
    int8, fp32 = accuracy["int8"].figure, accuracy["fp32"].figure
    [behind] = REPLACED.split(out)[1:]
    assert behind.startswith(f"Version 2 has mAP50-95 {int8:.3f} (it had {fp32:.3f}).\n")
