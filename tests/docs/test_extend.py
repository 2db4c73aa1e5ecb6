"""docs/extend.md: its package is installed, and each of its four entry points works."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.docs.pages import ROOT
from tests.serving import start_server

FOVEA = (sys.executable, "-m", "fovea_server.commands.cli")


@pytest.fixture(scope="module")
def acme(tmp_path_factory) -> Path:
    """The folder that the package of the page is installed in."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    page = (ROOT / "docs" / "extend.md").read_text()
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


def test_a_package_adds_a_backend_a_command_a_route_and_a_store(acme_here, demo_model, tmp_path):
    repository = tmp_path / "models"
    built = ("build", demo_model, "--name", "digits", "--repository", repository)
    run(*built, "--backend", "acme")
    assert '"backend": "acme"' in (repository / "digits" / "1" / "card.json").read_text()
    assert "acme" in run("doctor")

    assert re.search(r"^ +count +Count the models of a folder\.$", run("--help"), re.MULTILINE)
    assert run("count", repository).strip() == "1"

    server = start_server(f"acme://{repository}", tmp_path, ["--api=acme"])
    try:
        assert httpx.get(server.url + "/acme/ready").json() == ["digits"]
        scene = (demo_model.parent / "scene-1.jpg").read_bytes()
        found = httpx.post(server.predict_url("digits"), content=scene).json()
        assert found["images"][0]["detections"]
    finally:
        assert server.stop() == 0


def test_a_package_that_cannot_be_imported_is_left_out(acme, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.mkdir()
    for info in acme.glob("*.dist-info"):
        (broken / info.name).mkdir()
        for name in ("METADATA", "entry_points.txt"):
            (broken / info.name / name).write_text((info / name).read_text())
    monkeypatch.setenv("PYTHONPATH", str(broken), prepend=":")
    assert "acme" not in run("doctor")
    done = subprocess.run([*FOVEA, "count", "."], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "'count' of fovea-acme 1.0 cannot be imported (No module named" in done.stderr
    assert "Traceback" not in done.stderr
