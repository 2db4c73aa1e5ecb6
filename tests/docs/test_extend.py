"""docs/how-to/extend.md: its package is installed, and each of its entry points works."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from tests.docs.pages import ROOT

pytestmark = pytest.mark.real

FOVEA = (sys.executable, "-m", "fovea_server.cli.main")


@pytest.fixture(scope="module")
def acme(tmp_path_factory) -> Path:
    """The folder that the package of the page is installed in."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    page = (ROOT / "docs" / "how-to" / "extend.md").read_text()
    for kind, name in (("toml", "pyproject.toml"), ("python", "fovea_acme.py")):
        [text] = re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        (source / name).write_text(text)
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([sys.executable, *install, "--target", target, source], check=True)
    return target


@pytest.fixture
def acme_here(acme, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(acme), prepend=":")


def run(*arguments: object) -> str:
    command = [*FOVEA, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_package_adds_a_backend(acme_here, demo_model, tmp_path):
    repository = tmp_path / "models"
    built = ("build", demo_model, "--name", "digits", "--repository", repository)
    run(*built, "--backend", "acme")
    assert '"backend": "acme"' in (repository / "digits" / "1" / "card.json").read_text()
    assert "acme" in run("doctor")


def test_a_package_adds_a_head(acme_here, demo_model, tmp_path):
    model = onnx.load(demo_model)
    model.metadata_props.add(key="model_family", value="acme")
    onnx.save(model, tmp_path / "acme.onnx")
    built = ("build", tmp_path / "acme.onnx", "--repository", tmp_path / "models")
    run(*built, "--backend", "onnxruntime")
    card = json.loads((tmp_path / "models/acme/1/card.json").read_text())
    assert card["family"] == "acme"
    assert card["preprocess"]["channels"] == "BGR"
    scene = demo_model.parent / "scene-1.jpg"
    found = json.loads(run("predict", tmp_path / "models/acme", scene, "--json"))
    assert found["images"][0]["detections"]


def test_an_engine_names_the_head_that_is_not_installed(acme, demo_model, tmp_path):
    """And heads that are none are left out, by a line in the log."""
    model = onnx.load(demo_model)
    model.metadata_props.add(key="model_family", value="acme")
    onnx.save(model, tmp_path / "acme.onnx")
    built = [*FOVEA, "build", tmp_path / "acme.onnx", "--repository", tmp_path / "models"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(acme), prepend=":")
        subprocess.run([*built, "--backend", "onnxruntime"], check=True, capture_output=True)
    predict = [*FOVEA, "predict", tmp_path / "models/acme", demo_model.parent / "scene-1.jpg"]
    done = subprocess.run(predict, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "the head 'acme' is not installed: install the package" in done.stderr
    assert "Traceback" not in done.stderr


def test_heads_that_are_none_are_left_out(demo_model, tmp_path, monkeypatch):
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fovea.heads]\ntoy = toy:HEADS\n")
    (tmp_path / "toy.py").write_text("HEADS = (int, 'yolov8')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    command = [*FOVEA, "inspect", demo_model]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("of heads 'toy' is ignored: it is not a Head class") == 2


@pytest.fixture
def broken(acme, tmp_path, monkeypatch):
    """A package whose entry points are there, and whose module fails."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "fovea_acme.py").write_text("raise RuntimeError('libacme.so: no licence')")
    for info in acme.glob("*.dist-info"):
        (folder / info.name).mkdir()
        for name in ("METADATA", "entry_points.txt"):
            (folder / info.name / name).write_text((info / name).read_text())
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")


def test_a_package_that_fails_is_named(broken, demo_model, tmp_path):
    shutil.copy(demo_model, tmp_path)
    command = [*FOVEA, "build", "digits.onnx", "--backend=acme"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "of fovea-acme 1.0 cannot be imported (RuntimeError: libacme.so" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr


def test_the_rest_works_beside_a_package_that_fails(broken, demo_model):
    findings = [each["text"] for each in json.loads(run("doctor", "--json"))["findings"]]
    for group in ("fovea.backends", "fovea.heads"):
        [finding] = [text for text in findings if text.startswith(f"{group}: ")]
        assert "of fovea-acme 1.0 cannot be imported (RuntimeError: libacme.so" in finding
        assert "install that package again, or remove it" in finding
    assert run("inspect", demo_model)


def test_names_stay_with_the_first(tmp_path, monkeypatch):
    info = tmp_path / "late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fovea.backends]\nonnxruntime = late:X\ntensorrt = late:Y\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    doctor = subprocess.run([*FOVEA, "doctor"], capture_output=True, text=True, check=False)
    for taken in ("onnxruntime", "tensorrt"):
        assert (
            f"backend '{taken}' of late 1.0 is ignored: another backend has the same name"
            in doctor.stderr
        )


def test_a_server_and_doctor_warn_of_a_table_that_is_not_read_any_more(tmp_path, monkeypatch):
    info = tmp_path / "late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fovea.commands]\nimages.count = late:count\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    command = [*FOVEA, "serve", tmp_path / "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = [each["text"] for each in json.loads(run("doctor", "--json"))["findings"]]
    for said in (done.stderr, "\n".join(findings)):
        assert "late 1.0 adds 'images.count' to fovea.commands, which Fovea no longer reads" in said
        assert "make it a script of that package" in said
