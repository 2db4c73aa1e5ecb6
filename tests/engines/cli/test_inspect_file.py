"""`fovea inspect` of ONNX files: every line reads well to the person who trained the model."""

import json
import re

import onnx
import pytest
from tests.conftest import SHARED
from tests.engines.heads.test_contradictions import planted
from tests.engines.tiny import tiny_detector

pytestmark = pytest.mark.real

HEADS = sorted(path.stem for path in (SHARED / "models" / "heads").glob("*.onnx"))


def words(text):
    return " ".join(text.replace("│", " ").split())


def test_it_shows_the_preprocessing_and_its_origin(fovea, tiny_model):
    out = words(fovea("inspect", tiny_model)[1])
    assert (
        "letterboxed to 64x64 (height x width), centred, padded with grey 114; RGB, 0 to 1" in out
    )
    assert "by the family yolov8" in out
    file = json.loads(fovea("inspect", tiny_model, "--json")[1])
    assert file["preprocess"]["height"] == 64
    assert file["preprocess_from"] == "by the family yolov8"


def test_it_lists_the_families_that_were_considered_best_first(fovea, tiny_model):
    file = json.loads(fovea("inspect", tiny_model, "--json")[1])
    best, *others = file["candidates"]
    assert best["family"] == file["family"] == "yolov8"
    assert (best["strength"], best["against"]) == ("shape", None)
    assert "84 boxes are one for each cell" in best["evidence"]
    assert all(one["against"] for one in others if one["strength"] == "shape")


def test_it_shows_the_size_that_a_build_takes(fovea, tmp_path):
    model = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    assert "dynamic: built for 640x640; --size HxW for another" in words(fovea("inspect", model)[1])


@pytest.mark.parametrize(
    ("model", "named"), [("mobilenetv2", "imagenet"), ("heads/rfdetr", "coco91")]
)
def test_labels_that_may_be_its_own_are_named(fovea, shared, model, named):
    out = words(fovea("inspect", shared / "models" / f"{model}.onnx")[1])
    assert f"none: build with --labels {named}, if it was trained on those" in out


def test_a_size_that_cannot_be_computed(fovea, shared):
    out = words(fovea("inspect", shared / "models" / "heads" / "yolo5face-500m.onnx")[1])
    assert "640x640 cannot be computed: build with --size 320x320" in out


def test_a_choice_is_named_in_the_words_of_the_command(fovea, shared, tmp_path):
    model = onnx.load(shared / "models" / "heads" / "rtmdet.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "m.onnx")
    out = words(fovea("inspect", tmp_path / "m.onnx")[1])
    assert "to be chosen: build with --head rtmdet or --head picodet" in out
    file = json.loads(fovea("inspect", tmp_path / "m.onnx", "--json")[1])
    assert file["open"] == ["rtmdet", "picodet"]


@pytest.mark.parametrize("case", ["v5, transposed", "v8, classes before boxes"])
def test_the_reason_against_all_families_is_short(fovea, shared, tmp_path, case):
    onnx.save(planted(shared, case)[0], tmp_path / "m.onnx")
    file = json.loads(fovea("inspect", tmp_path / "m.onnx", "--json")[1])
    assert file["family"] is None
    reason = file["reason"]
    assert len(reason) < 400
    named = re.findall(r"nearest are (.*)", reason)
    assert named or "no family that Fovea decodes has such outputs" in reason
