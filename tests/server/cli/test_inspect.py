"""`fovea inspect` as it is typed: of ONNX files, versions, repositories and ensembles."""

import json
import re
import shutil
from dataclasses import replace

import onnx
import pytest
from tests.engines.heads.test_contradictions import Surgeon
from tests.engines.tiny import tiny_detector

from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.figures import Calibration

pytestmark = pytest.mark.slow


def flat(text):
    return " ".join(text.replace("│", " ").split())


def test_files_and_folders(fovea, tiny_model, built_repository):
    file = json.loads(fovea("inspect", tiny_model, "--json")[1])
    assert file["family"] == "yolov8"
    assert file["inputs"] == [{"name": "images", "dtype": "float32", "shape": [-1, 3, 64, 64]}]
    assert file["labels"] == ["cat", "dog", "bus"]
    assert file["preprocess"]["height"] == 64
    assert file["preprocess_from"] == "by the family yolov8"
    # The families that were considered, best first.
    best, *others = file["candidates"]
    assert (best["family"], best["strength"], best["against"]) == ("yolov8", "shape", None)
    assert "84 boxes are one for each cell" in best["evidence"]
    assert all(one["against"] for one in others if one["strength"] == "shape")
    text = flat(fovea("inspect", tiny_model)[1])
    for word in ("yolov8", "84 boxes", "cat, dog, bus", "images float32 ?x3x64x64", "0 to 1"):
        assert word in text
    for folder in (built_repository, built_repository / "tiny", built_repository / "tiny" / "1"):
        [entry] = json.loads(fovea("inspect", folder, "--json")[1])
        assert entry["version"] == 1
        assert entry["name"] == entry["card"]["name"] == "tiny"


def test_what_cannot_be_opened_is_shown_among_the_rest(fovea, built_repository, tmp_path):
    shutil.copytree(built_repository, tmp_path / "r")
    (tmp_path / "r" / "empty" / "1").mkdir(parents=True)
    (tmp_path / "r" / "tiny" / "2").mkdir()
    (tmp_path / "r" / "tiny" / "2" / "card.json").write_text("{")
    entries = json.loads(fovea("inspect", tmp_path / "r", "--json")[1])
    assert [(e["name"], e["version"], "error" in e) for e in entries] == [
        ("empty", 1, True),
        ("tiny", 1, False),
        ("tiny", 2, True),
    ]
    text = fovea("inspect", tmp_path / "r")[1]
    assert "empty 1 cannot be opened" in text
    assert "tiny 2 cannot be opened" in text


def test_figures_of_each_precision(fovea, tiny_model, card, tmp_path):
    for precision in ("fp32", "fp16"):
        code, out, err = fovea("build", tiny_model, "--name", precision, "--precision", precision)
        assert code == 0, err
        assert precision in out
    assert "0 missed, 0 extra, mean IoU 1.000" in flat(out)
    lines = fovea("inspect", "repository")[1].splitlines()
    [half] = [line.split() for line in lines if " fp16 " in line]
    assert half[-4:] == ["fp16", "1.000", "of", "1"]


def test_a_build_that_was_refused(fovea, card, tmp_path):
    failed = tmp_path / "r" / "tiny" / "failed-build"
    failed.mkdir(parents=True)
    figures = Accuracy(9, 0.25, 0.5, {"cat": 0.25}, {"small": None, "large": 0.25})
    remarks = ("only 8 images to calibrate on",)
    replace(
        card,
        refused="INT8 agrees 0.1",
        precision="int8",
        agreement=replace(card.agreement, detections=40, missed=31, extra=2),
        calibration=Calibration("entropy", 8, "", "", 57, ("Conv_1",), True, remarks=remarks),
        accuracy={"fp32": replace(figures, map50_95=0.75), "int8": figures},
    ).write(failed / "card.json")
    for folder in (tmp_path / "r", tmp_path / "r" / "tiny"):
        code, out, err = fovea("inspect", folder)
        assert (code, out) == (2, "")
        assert "tiny has no version, because its last build was rejected: INT8 agrees 0.1." in err
        assert str(failed / "card.md") in err
    code, out, _ = fovea("inspect", failed)
    assert code == 0
    for says in (
        "precision int8",
        "entropy of 8 images, measured for an earlier build",
        "1 kept in float: Conv_1",
        *remarks,
        "31 missed, 2 extra",
        "mAP50-95 0.750 0.250",
        "mAP50-95 small - -",
    ):
        assert says in flat(out)


def test_names_are_whole_in_80_columns(fovea, built_repository, tmp_path):
    names = ("people-counter-yolov8n-640-int8", "x" * 31)
    for name in names:
        shutil.copytree(built_repository / "tiny", tmp_path / "r" / name)
    (tmp_path / "r" / ("y" * 100) / "1").mkdir(parents=True)
    lines = fovea("inspect", tmp_path / "r")[1].splitlines()
    assert max(map(len, lines)) <= 80
    for name in names:
        assert name in (line.split()[0] for line in lines if line.strip())
    assert sum(line.split()[0].count("y") for line in lines if line.startswith(" y")) == 100


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] }
output { name: "BOXES" data_type: TYPE_FP32 dims: [ 300, 4 ] }
ensemble_scheduling {
  step { model_name: "decode" model_version: -1
    input_map { key: "bytes" value: "IMAGE" } output_map { key: "pixels" value: "image" } }
  step { model_name: "detect" model_version: 2
    input_map { key: "images" value: "image" } output_map { key: "boxes" value: "BOXES" } }
}
"""


def test_the_steps_of_an_ensemble(fovea, built_repository, tmp_path):
    folder = tmp_path / "r" / "both"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ENSEMBLE)
    for path in (folder, folder / "1"):
        out = fovea("inspect", path)[1]
        assert "decode: bytes from IMAGE, image from pixels" in out
        assert "detect 2: images from image, BOXES from boxes" in out
        assert "IMAGE uint8 ?x?" in out
    [entry] = json.loads(fovea("inspect", folder, "--json")[1])
    assert entry["ensemble"]["steps"][1] == {
        "model": "detect",
        "version": 2,
        "inputs": {"images": "image"},
        "outputs": {"boxes": "BOXES"},
    }
    (tmp_path / "r" / "tiny").symlink_to(built_repository / "tiny")
    out = fovea("inspect", tmp_path / "r")[1]
    assert "decode, detect" in out
    assert "cannot be opened" not in out


def test_what_to_build_a_file_with(fovea, tmp_path):
    """And an export whose outputs have no axis for the batch is recognised."""
    model = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    assert "a build uses 640x640" in flat(fovea("inspect", model)[1])
    bare = onnx.load(tiny_detector(tmp_path / "m.onnx", batch=1))
    [output] = bare.graph.output
    [last] = [node for node in bare.graph.node if output.name in node.output]
    last.output[0] = "whole"
    bare.graph.initializer.append(
        onnx.helper.make_tensor("first", onnx.TensorProto.INT64, [1], [0])
    )
    bare.graph.node.append(onnx.helper.make_node("Squeeze", ["whole", "first"], [output.name]))
    del output.type.tensor_type.shape.dim[0]
    onnx.save(bare, tmp_path / "bare.onnx")
    file = json.loads(fovea("inspect", "bare.onnx", "--json")[1])
    assert file["family"] == "yolov8"
    assert file["reason"].endswith("so a build adds one as the first axis")


@pytest.mark.real
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mobilenetv2", "build with --labels imagenet"),
        ("heads/rfdetr", "build with --labels coco91"),
        ("heads/yolo5face-500m", "the model cannot run at 640x640: build with --size 320x320"),
    ],
)
def test_what_to_build_a_real_file_with(fovea, shared, model, says):
    assert says in flat(fovea("inspect", shared / "models" / f"{model}.onnx")[1])


@pytest.mark.real
def test_a_choice_is_named_in_the_words_of_the_command(fovea, shared, tmp_path):
    model = onnx.load(shared / "models" / "heads" / "rtmdet.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "m.onnx")
    out = flat(fovea("inspect", "m.onnx")[1])
    assert "undecided: build with --head rtmdet or --head picodet" in out
    assert json.loads(fovea("inspect", "m.onnx", "--json")[1])["open"] == ["rtmdet", "picodet"]


@pytest.mark.real
@pytest.mark.parametrize("case", ["yolov5n, transposed", "yolov8n, classes before boxes"])
def test_the_reason_against_all_families_is_short(fovea, shared, tmp_path, case):
    surgeon = Surgeon(shared / "models" / f"{case.partition(',')[0]}.onnx")
    if "transposed" in case:
        model = surgeon("Transpose", perm=[0, 2, 1]).finished(True)
    else:
        model = surgeon.take([*range(4, 84), *range(4)], 1).finished()
    onnx.save(model, tmp_path / "m.onnx")
    file = json.loads(fovea("inspect", "m.onnx", "--json")[1])
    assert file["family"] is None
    reason = file["reason"]
    assert len(reason) < 500
    named = re.findall(r"nearest are (.*)", reason)
    assert named or "no family that Fovea decodes has such outputs" in reason
