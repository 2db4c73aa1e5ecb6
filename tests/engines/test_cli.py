"""`fovea build` and `fovea inspect` as they are typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .tiny import tiny_detector


def fovea(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fovea_server.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_build_shows_phases_the_card_and_the_next_command(tiny_model, tmp_path):
    first = fovea("build", tiny_model, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for phase in ("load", "normalise", "compile", "agreement"):
        assert phase in first.stderr
    assert "tiny version 1" in first.stdout
    assert "yolov8" in first.stdout
    assert "fovea serve repository" in first.stdout
    assert (tmp_path / "repository" / "tiny" / "1" / "card.json").is_file()
    again = fovea("build", tiny_model, cwd=tmp_path)
    assert again.returncode == 0
    assert "version 1 of tiny was built from the same: nothing to build" in again.stderr


def test_json_is_one_document_on_stdout(tmp_path):
    model = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    run = fovea(
        "build", model, "--name", "other", "--repository", tmp_path / "r", "--backend",
        "onnxruntime", "--size", "64x96", "--max-batch", 2, "--labels", tmp_path / "names.txt",
        "--head", "yolov8", "--json",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["version"] == 1
    card = document["card"]
    assert (card["name"], card["backend"], card["max_batch"]) == ("other", "onnxruntime", 2)
    assert card["labels"] == ["a", "b", "c"]
    assert (card["preprocess"]["height"], card["preprocess"]["width"]) == (64, 96)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("build", "absent.onnx"), "absent.onnx is not there"),
        (("build", "broken.onnx"), "not a whole ONNX model"),
        (("build", "tiny.onnx", "--size", "big"), "HEIGHTxWIDTH"),
        (("build", "tiny.onnx", "--size", "96"), "fixed at 64x64"),
        (("build", "tiny.onnx", "--name", "../x"), "cannot name a model"),
        (("build", "tiny.onnx", "--labels", "broken.onnx"), "labels"),
        (("build", "tiny.onnx", "--images", "."), "no picture"),
        (("inspect", "absent.onnx"), "absent.onnx is not there"),
        (("inspect", "."), "has no model"),
    ],
)
def test_an_error_is_a_sentence(tiny_model, tmp_path, arguments, says):
    (tmp_path / "tiny.onnx").write_bytes(tiny_model.read_bytes())
    (tmp_path / "broken.onnx").write_bytes(tiny_model.read_bytes()[:500])
    run = fovea(*arguments, cwd=tmp_path)
    assert run.returncode == 1
    assert says in run.stderr
    assert "Traceback" not in run.stderr
    assert not list((tmp_path / "repository").glob("*"))


def test_inspect_reads_files_and_folders(tiny_model, built_repository):
    file = json.loads(fovea("inspect", tiny_model, "--json").stdout)
    assert file["family"] == "yolov8"
    assert file["inputs"] == [{"name": "images", "dtype": "float32", "shape": [-1, 3, 64, 64]}]
    assert file["labels"] == ["cat", "dog", "bus"]
    for folder in (built_repository, built_repository / "tiny", built_repository / "tiny" / "1"):
        [entry] = json.loads(fovea("inspect", folder, "--json").stdout)
        assert entry["version"] == 1
        assert entry["card"]["name"] == "tiny"
    text = fovea("inspect", tiny_model).stdout
    for word in ("yolov8", "84 boxes", "cat, dog, bus", "images float32 ?x3x64x64"):
        assert word in text
