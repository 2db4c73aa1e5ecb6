"""`fovea build` and `fovea inspect` as they are typed."""

import json
import shutil
from dataclasses import replace

import pytest
from onnx import helper
from tests.engines.tiny import save, tiny_detector

from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.figures import Calibration

pytestmark = pytest.mark.slow


def test_build_shows_phases_the_card_and_the_next_command(fovea, tiny_model, tmp_path):
    code, out, err = fovea("build", tiny_model)
    assert code == 0, err
    for phase in ("load", "normalise", "compile", "agreement"):
        assert phase in err
    assert "tiny version 1, current" in out
    assert "yolov8" in out
    assert out.splitlines()[-1] == "Serve it: fovea serve"
    assert (tmp_path / "repository" / "tiny" / "1" / "card.json").is_file()
    code, _, err = fovea("build", tiny_model)
    assert code == 0
    assert "version 1 of tiny was built from the same: nothing to build" in err


def test_build_says_which_version_is_served(fovea, tiny_model, tmp_path):
    config = tmp_path / "repository" / "tiny" / "config.pbtxt"

    def said(backend):
        code, out, err = fovea("build", tiny_model, "--backend", backend)
        assert code == 0, err
        return out.split("┘")[-1].strip().splitlines()

    def marks():
        return [e["served"] for e in json.loads(fovea("inspect", "repository", "--json")[1])]

    running, to_do = said("openvino")
    assert running.startswith(
        "A running server loads it at its next restart, or at once with --model"
    )
    assert to_do == "Serve it: fovea serve"
    assert said("onnxruntime") == [
        "Version 2 replaces version 1 (openvino fp32). To go back: fovea rollback tiny",
        running,
        "Serve it: fovea serve",
    ]
    assert marks() == [False, True]
    older, to_do = said("openvino")
    assert older == "Version 1 is not served. Version 2 (onnxruntime fp32) is, as the newest."
    # As it is told.
    _, told, command = to_do.partition("To serve version 1: fovea ")
    assert told
    assert fovea(*command.split())[0] == 0
    assert marks()[0]
    assert said("openvino") == [running, "Serve it: fovea serve"]
    config.write_text(config.read_text() + "version_policy { specific { versions: [ 1 ] } }")
    newer, _ = said("onnxruntime")
    assert newer.startswith("Version 2 is not served. Version 1 (openvino fp32) is, by the version")
    lines = fovea("inspect", "repository")[1].splitlines()
    assert ["1 current" in line for line in lines].count(True) == 1
    assert "tiny version 2, not served" in fovea("inspect", "repository/tiny/2")[1]
    config.write_text("nonsense")
    assert said("openvino") == [
        f"No version of tiny is served, as {config.relative_to(tmp_path)} is wrong: correct it."
    ]


def test_json_is_one_document_on_stdout(fovea, tmp_path):
    model = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    code, out, err = fovea(
        "build", model, "--name", "other", "--repository", tmp_path / "r", "--backend",
        "onnxruntime", "--size", "64x96", "--max-batch", 2, "--labels", tmp_path / "names.txt",
        "--head", "yolov8", "--json",
    )  # fmt: skip
    assert code == 0, err
    document = json.loads(out)
    assert document["version"] == 1
    card = document["card"]
    assert (card["name"], card["backend"], card["max_batch"]) == ("other", "onnxruntime", 2)
    assert card["labels"] == ["a", "b", "c"]
    assert (card["preprocess"]["height"], card["preprocess"]["width"]) == (64, 96)


def test_what_has_no_classes_has_no_labels(fovea, tmp_path):
    depth = helper.make_node("ReduceMax", ["images"], ["depth"], axes=[1])
    shape = [1, 3, 64, 64]
    save(tmp_path / "m.onnx", [depth], [("images", shape)], [("depth", [1, 1, 64, 64])], opset=13)
    (tmp_path / "names.txt").write_text("near\n")
    code, out, err = fovea("build", "m.onnx", "--labels", "names.txt")
    assert (code, out) == (2, "")
    assert "--labels has no effect: the model's task is depth" in err
    code, out, _ = fovea("inspect", "m.onnx")
    assert (code, "depth" in out, "labels" in out) == (0, True, False)


def test_inspect_reads_files_and_folders(fovea, tiny_model, built_repository):
    file = json.loads(fovea("inspect", tiny_model, "--json")[1])
    assert file["family"] == "yolov8"
    assert file["inputs"] == [{"name": "images", "dtype": "float32", "shape": [-1, 3, 64, 64]}]
    assert file["labels"] == ["cat", "dog", "bus"]
    for folder in (built_repository, built_repository / "tiny", built_repository / "tiny" / "1"):
        [entry] = json.loads(fovea("inspect", folder, "--json")[1])
        assert entry["version"] == 1
        assert entry["name"] == entry["card"]["name"] == "tiny"
    text = fovea("inspect", tiny_model)[1]
    for word in ("yolov8", "84 boxes", "cat, dog, bus", "images float32 ?x3x64x64"):
        assert word in text


def test_inspect_shows_what_cannot_be_opened_among_the_rest(fovea, built_repository, tmp_path):
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


def test_inspect_shows_how_good_each_precision_is(fovea, tiny_model, tmp_path):
    for precision in ("fp32", "fp16"):
        code, out, err = fovea("build", tiny_model, "--name", precision, "--precision", precision)
        assert code == 0, err
        assert precision in out
    words = " ".join(out.replace("│", " ").split())
    assert "0 missed, 0 extra, mean IoU 1.000" in words
    lines = fovea("inspect", "repository")[1].splitlines()
    [half] = [line.split() for line in lines if " fp16 " in line]
    assert half[0] == "fp16"
    assert half[-4:] == ["fp16", "1.000", "of", "1"]


def test_inspect_shows_whole_names_in_80_columns(fovea, built_repository, tmp_path):
    names = ("people-counter-yolov8n-640-int8", "x" * 31)
    for name in names:
        shutil.copytree(built_repository / "tiny", tmp_path / "r" / name)
    (tmp_path / "r" / ("y" * 100) / "1").mkdir(parents=True)
    out = fovea("inspect", tmp_path / "r")[1]
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in names:
        assert name in (line.split()[0] for line in lines if line.strip())
    assert sum(line.split()[0].count("y") for line in lines if line.startswith(" y")) == 100


def test_inspect_tells_that_the_only_build_was_refused(fovea, card, tmp_path):
    failed = tmp_path / "r" / "tiny" / "failed-build"
    failed.mkdir(parents=True)
    replace(card, refused="INT8 agrees 0.1").write(failed / "card.json")
    for folder in (tmp_path / "r", tmp_path / "r" / "tiny"):
        code, out, err = fovea("inspect", folder)
        assert (code, out) == (2, "")
        assert "tiny has no version, as its last build was refused: INT8 agrees 0.1." in err
        assert str(failed / "card.md") in err


def test_inspect_shows_figures_of_a_refused_build(fovea, card, tmp_path):
    folder = tmp_path / "tiny" / "failed-build"
    folder.mkdir(parents=True)
    figures = Accuracy(9, 0.25, 0.5, {"cat": 0.25}, {"small": None, "large": 0.25})
    replace(
        card,
        precision="int8",
        agreement=replace(card.agreement, detections=40, missed=31, extra=2),
        calibration=Calibration("entropy", 8, "", "", 57, ("Conv_1",), reused=True),
        accuracy={"fp32": replace(figures, map50_95=0.75), "int8": figures},
    ).write(folder / "card.json")
    code, out, _ = fovea("inspect", folder)
    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    for says in (
        "precision int8",
        "entropy of 8 images, measured for an earlier build",
        "1 kept in float: Conv_1",
        "40 detections on 3 photographs that ship with Fovea: 31 missed, 2 extra",
        "mAP50-95 0.750 0.250",
        "mAP50-95 small - -",
    ):
        assert says in words
