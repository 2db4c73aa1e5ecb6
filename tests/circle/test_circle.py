"""From what a model gets wrong to its next version, as in docs/tutorials/retraining.md."""

import json
import os
import subprocess
import sys
import threading
from itertools import cycle
from pathlib import Path

import pytest
from tests.conftest import DEMO
from tests.serving import start_server
from tools.demo_models.night import lines, scene, write_labelled

from fovea_client import Client, FoveaClientError
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan

ROOT = Path(__file__).parents[2]
TORCH = Path(sys.prefix) / "train" / "site-packages"
CAPTURED, JUDGED, STEPS = 120, 40, 40
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not TORCH.exists(), reason=f"{TORCH} is absent: `make test-circle` installs it"
    ),
]


class Traffic(threading.Thread):
    """A client that sends scenes one after the other until it is stopped."""

    def __init__(self, url, images):
        super().__init__()
        self.url, self.images = url, images
        self.versions, self.stopped = [], threading.Event()
        self.fault = None

    def run(self):
        try:
            with Client(self.url) as client:
                for image in cycle(self.images):
                    self.versions.append(client.predict("digits", image).version)
                    if self.stopped.wait(0.02):
                        return
        except FoveaClientError as fault:
            self.fault = fault

    def stop(self):
        self.stopped.set()
        self.join()
        assert self.fault is None, self.fault


def train(data, target):
    environment = os.environ | {"PYTHONPATH": str(TORCH), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.demo_models.finetune", DEMO / "digits.onnx"]
    asked = [*map(str, [*command, data, target]), "--steps", str(STEPS)]
    told = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment}
    done = subprocess.run(asked, check=False, **told)
    assert done.returncode == 0, done.stderr


def test_a_model_learns_from_what_it_was_shown(tmp_path, fovea):
    scenes = [scene(number, "train") for number in range(CAPTURED)]
    truth = {png: lines(made) for png, made in scenes}
    repository, judged = tmp_path / "repository", tmp_path / "judged"
    build(BuildPlan(DEMO / "digits.onnx", "digits", repository, "onnxruntime"))
    write_labelled(judged, range(JUDGED), "heldout")
    kept = tmp_path / "kept"
    (repository / "digits" / "fovea.toml").write_text(
        '[capture]\nrules = ["rate 100%"]\nper_minute = 10000\n'
    )
    asked = ("promote", "digits", 1, "--repository", repository)
    assert fovea(*asked)[0] == 0
    server = start_server(repository, tmp_path, ["--capture", str(kept)])
    with Client(server.url) as client:
        for png in truth:
            assert client.predict("digits", png).version == "1"
    assert server.stop() == 0

    out = tmp_path / "data"
    asked = ("capture", "export", kept, "--model", "digits", "--format", "yolo", "--out", out)
    assert fovea(*asked)[0] == 0
    images = sorted((out / "images").iterdir())
    assert len(images) == CAPTURED
    for image in images:
        # A person's work: each label is corrected.
        (out / "labels" / f"{image.stem}.txt").write_text(truth[image.read_bytes()])
    train(out, tmp_path / "night.onnx")
    source = tmp_path / "night.onnx"
    asked = ("build", source, "--name", "digits", "--repository", repository, "--data", judged)
    code, _, err = fovea(*asked, "--backend", "onnxruntime")
    assert code == 0, err

    server = start_server(repository, tmp_path)
    traffic = Traffic(server.url, list(truth))
    traffic.start()
    url = ("--url", server.url)
    code, told, err = fovea("shadow", "digits", 2, "--share", 1, "--images", 50, *url, "--json")
    assert code == 0, err
    assert json.loads(told)["report"]["images"] == 50
    assert {*traffic.versions} == {"1"}
    assert fovea("promote", "digits", 2, *url, "--why", "finds digits at night")[0] == 0
    with Client(server.url) as client:
        assert client.predict("digits", scenes[0][0]).version == "2"
    traffic.stop()
    assert server.stop() == 0

    figures = []
    for version in (1, 2):
        asked = ("eval", "digits", "--version", version, "--repository", repository)
        code, told, err = fovea(*asked, "--data", judged, "--json")
        assert code == 0, err
        figures.append(json.loads(told)["map50_95"])
    assert figures[1] >= figures[0] + 0.05, figures
