"""A build is compared with the version that it replaces, in the figures that both cards have."""

import re

import pytest
from tests.conftest import DEMO

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_life.promotion.documents import Promotion
from fovea_life.promotion.record import HistoryRecord

pytestmark = pytest.mark.slow

REPLACED = re.compile(r"Version 2 replaces version 1 \([a-z]+ [a-z0-9]+\)\.\n")


def cards(repository, name):
    return [EngineCard.read(repository / name / str(one) / "card.json") for one in (1, 2)]


def test_in_speed(fovea, tiny_model, tmp_path):
    code, out, err = fovea("build", tiny_model)
    assert (code, "it had" in out) == (0, False), err
    words = " ".join(out.replace("│", " ").split())
    assert (
        "ms, one images/s, chosen by backend precision image parallel agreement images/s" in words
    )
    code, out, err = fovea("build", tiny_model, "--for", "latency")
    assert code == 0, err
    before, after = (
        next(each for each in card.candidates if each.kept)
        for card in cards(tmp_path / "repository", "tiny")
    )
    [behind] = REPLACED.split(out)[1:]
    assert behind.startswith(
        f"Version 2 has {after.images_per_s:.4g} images/s in parallel (it had "
        f"{before.images_per_s:.4g} when it was built), {after.alone_ms:.3g} ms for one image "
        f"(it had {before.alone_ms:.3g}).\n"
    )


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
