"""`fovea init --from-triton`: what goes on of repositories, and what is named."""

import json
import re
import shlex

import httpx
import numpy as np
import pytest
import tritonclient.http as tritonclient
from tests.conftest import DEMO
from tests.server.cli.from_triton.written import (
    NETWORK,
    ensemble,
    ensemble_of_rows,
    python,
    relu,
)
from tests.serving import start_server

pytestmark = pytest.mark.slow

DALI = 'backend: "dali"'
BUILD = "fovea build models/digits.onnx"
STEPS = ("pre", "digits", "post")


@pytest.fixture
def read(fovea, triton):
    """Start a project from a repository: its report."""

    def run(**models):
        code, out, err = fovea("init", "new", "--from-triton", triton(**models), "--json")
        assert (code, err) == (0, ""), err
        return json.loads(out)

    return run


@pytest.mark.parametrize(
    ("models", "steps", "runs", "left", "build"),
    [
        pytest.param({}, [], {}, [], BUILD, id="a network alone"),
        pytest.param(
            {"pre": python(), "post": python(), "all": {"config.pbtxt": ensemble(*STEPS)}},
            [("pre", "python", "pre/1/model.py"), ("post", "python", "post/1/model.py")],
            {"all": list(STEPS)},
            [r"pre \(.*ran before it.*--preprocess", r"post \(.*ran after it.*\?conf="],
            BUILD,
            id="between Python steps",
        ),
        pytest.param(
            {
                "pre": {"1/dali.py": "", "1/model.dali": b"\0", "config.pbtxt": DALI},
                "all": {"config.pbtxt": ensemble("pre", "digits")},
            },
            [("pre", "dali", "pre/1/dali.py")],
            {"all": ["pre", "digits"]},
            [r"pre \(dali.*--preprocess"],
            BUILD,
            id="after DALI",
        ),
        pytest.param(
            {
                "pre": {"1/model.dali": b"\0\1\2", "config.pbtxt": DALI},
                "all": {"config.pbtxt": ensemble("pre", "digits")},
            },
            [("pre", "dali", "pre/1/model.dali")],
            {"all": ["pre", "digits"]},
            [r"pre \(dali"],
            BUILD,
            id="after serialised DALI",
        ),
        pytest.param(
            {"digits": {}, "bls": python(**{"1/digits.onnx": None})},
            [("bls", "python", "bls/1/model.py")],
            {},
            [r"bls \(python.*--preprocess"],
            BUILD,
            id="in the folder of a step",
        ),
        pytest.param(
            {"all": {"config.pbtxt": ensemble("digits")}},
            [],
            {"all": ["digits"]},
            [],
            BUILD,
            id="in an ensemble without steps",
        ),
        pytest.param(
            {"digits": {"1/model.plan": b"ftrt", "config.pbtxt": 'platform: "tensorrt_plan"'}},
            [],
            {},
            ["cannot be turned back into ONNX"],
            BUILD,
            id="a plan",
        ),
        pytest.param(
            {"digits": {"config.pbtxt": 'platform: "onnxruntime_onnx"'}},
            [],
            {},
            ["digits/1 has no model.onnx"],
            BUILD,
            id="not fetched",
        ),
        pytest.param(
            {"digits": {"config.pbtxt": 'platform: "tensorflow_graphdef"\nsequence_batching {}'}},
            [],
            {},
            ["export it to ONNX", "sequence_batching; after the build, write it"],
            BUILD,
            id="of another backend",
        ),
        pytest.param(
            {
                "digits": NETWORK
                | {
                    "config.pbtxt": 'output [{ name: "output0" label_filename: "names" }]\n'
                    "instance_group [{ count: 2 }]\nresponse_cache { enable: true }",
                    "names": "".join(f"digit {number}\n" for number in range(10)),
                }
            },
            [],
            {},
            ["not kept of config.pbtxt: instance_group"],
            f"{BUILD} --labels models/digits.txt",
            id="with labels and a cache",
        ),
    ],
)
def test_a_network_goes_on_and_its_steps_are_named(
    read, tmp_path, models, steps, runs, left, build
):
    every = {"digits": NETWORK} | models
    report = read(**{name: files for name, files in every.items() if files})
    [network] = report["networks"]
    place = tmp_path / "triton"
    named = [(each["name"], each["kind"], each["file"]) for each in network["steps"]]
    assert named == [(name, kind, str(place / file)) for name, kind, file in steps]
    order = {e["name"]: [part["name"] for part in e["parts"]] for e in report["ensembles"]}
    assert order == runs
    assert network["ensemble"] == next(iter(runs), None)
    assert len(network["left"]) == len(left)
    for text, pattern in zip(network["left"], left, strict=True):
        assert re.search(pattern, text), text
    assert network["build"] == build
    for name in network["files"]:
        assert (tmp_path / "new" / name).is_file()
    assert (f"models/{network['name']}.onnx" in network["files"]) == bool(network["takes"])


def test_two_networks_one_inside_the_ensemble_of_the_other(read):
    report = read(
        pre=python(),
        first=NETWORK,
        between=python(),
        second=NETWORK,
        inner={"config.pbtxt": ensemble("pre", "first")},
        outer={"config.pbtxt": ensemble("inner", "between", "second")},
        lone=python(),
    )
    first, second = sorted(report["networks"], key=lambda one: one["name"])
    assert first["ensemble"] == second["ensemble"] == "outer"
    assert [step["name"] for step in first["steps"]] == ["pre", "between"]
    assert [step["name"] for step in second["steps"]] == ["between"]
    outer = next(each for each in report["ensembles"] if each["name"] == "outer")
    assert "pipeline.toml" in outer["note"]
    [problem] = report["problems"]
    assert problem.startswith("lone (python")


def test_the_project_answers_images_and_tensors(fovea, triton, tmp_path, monkeypatch):
    labels = 'output [{ name: "y" data_type: TYPE_FP32 dims: [ 1, 3 ] label_filename: "names" }]'
    repository = triton(
        pre=python(),
        digits=NETWORK,
        detector={"config.pbtxt": ensemble("pre", "digits")},
        one=relu(),
        two=relu() | {"config.pbtxt": labels, "names": "a\nb\nc\n"},
        both={"config.pbtxt": ensemble_of_rows("one", "two")},
    )
    code, out, err = fovea("init", "new", "--from-triton", repository)
    assert (code, err) == (0, "")
    commands = re.findall(r"^    (\S.*)$", out, re.MULTILINE)
    assert commands == ["cd new", BUILD, "fovea serve"]
    monkeypatch.chdir(tmp_path / "new")
    code, _, err = fovea(*shlex.split(BUILD)[1:], "--backend", "onnxruntime")
    assert code == 0, err
    server = start_server(tmp_path / "new" / "repository", tmp_path)
    try:
        image = (DEMO / "scene-1.jpg").read_bytes()
        answer = httpx.post(server.predict_url("digits"), content=image).json()
        assert len(answer["images"][0]["detections"]) > 5
        tensor = tritonclient.InferInput("RAW", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.array([[-1, 0, 2]], np.float32))
        with tritonclient.InferenceServerClient(server.url.removeprefix("http://")) as client:
            assert client.infer("both", [tensor]).as_numpy("t1").tolist() == [[0, 0, 2]]
            classes = tritonclient.InferRequestedOutput("y", class_count=1)
            tensor = tritonclient.InferInput("x", [1, 3], "FP32")
            tensor.set_data_from_numpy(np.array([[-1, 0, 2]], np.float32))
            found = client.infer("two", [tensor], outputs=[classes]).as_numpy("y")
            assert found.ravel().tolist() == [b"2.000000:2:c"]
    finally:
        assert server.stop() == 0
