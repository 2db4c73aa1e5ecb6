"""`fovea init --from-triton`: what goes on of repositories of Triton, and what is named.

Nothing that is broken, hostile or not there is run."""

import json
import os
import re
import shlex
import shutil

import httpx
import numpy as np
import pytest
import tritonclient.http as tritonclient
from onnx import TensorProto, helper
from tests.conftest import DEMO
from tests.serving import start_server

pytestmark = pytest.mark.slow

DALI = 'backend: "dali"'
BUILD = "fovea build models/digits.onnx"
STEPS = ("pre", "digits", "post")


Files = dict[str, str | bytes | None]
NETWORK: Files = {"1/model.onnx": None}
PYTHON = 'backend: "python"\n'
ENSEMBLE = 'platform: "ensemble"\n'
BYTES = '[{ name: "RAW" data_type: TYPE_UINT8 dims: [ -1 ] }]'
ROW = "data_type: TYPE_FP32 dims: [ 1, 3 ]"


def step(model: str, takes: str, gives: str) -> str:
    return (
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{takes}" }} '
        f'output_map {{ key: "y" value: "{gives}" }} }}'
    )


def ensemble(*models: str, takes: str = BYTES, more: str = "") -> str:
    """A configuration whose steps run in this order, and are not written in it."""
    tensors = ["RAW", *(f"t{number}" for number in range(len(models)))]
    parts = [step(*each) for each in zip(models, tensors, tensors[1:], strict=False)]
    steps = f"ensemble_scheduling {{ step [ {', '.join(reversed(parts))} ] }}\n"
    return f"{ENSEMBLE}input {takes}\n{more}{steps}"


def ensemble_of_rows(*models: str) -> str:
    """One whose networks take and give rows of three numbers."""
    gives = f'output [{{ name: "t{len(models) - 1}" {ROW} }}]\n'
    return ensemble(*models, takes=f'[{{ name: "RAW" {ROW} }}]', more=gives)


def python(source: str | bytes = "", config: str = PYTHON, **more: str | bytes | None) -> Files:
    return {"1/model.py": source, "config.pbtxt": config, **more}


def relu() -> Files:
    """A network of rows of three numbers."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "rows", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return {"1/model.onnx": model.SerializeToString()}


@pytest.fixture
def triton(tmp_path, demo_model):
    """Write models of a repository: files of each, as text, or as None for the demo network."""

    def write(**models: dict[str, str | bytes | None]):
        for name, files in models.items():
            (tmp_path / "triton" / name / "1").mkdir(parents=True)
            for file, content in files.items():
                path = tmp_path / "triton" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    shutil.copyfile(demo_model, path)
                else:
                    path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "triton"

    return write


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
            {"digits": {**NETWORK, "config.pbtxt": "max_batch_size: 8"}},
            [],
            {},
            [],
            f"{BUILD} --max-batch 8",
            id="a network with batches",
        ),
        pytest.param(
            {"pre": python(), "post": python(), "all": {"config.pbtxt": ensemble(*STEPS)}},
            [("pre", "python", "pre/1/model.py"), ("post", "python", "post/1/model.py")],
            {"all": list(STEPS)},
            [
                r"pre \(.*runs before the model.*--preprocess",
                r"post \(.*runs after the model.*\?conf=",
            ],
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
            ["cannot be converted to ONNX"],
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
            ["export it to ONNX", "sequence_batching; if you need"],
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
            ["not copied from config.pbtxt: instance_group"],
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
    assert problem.startswith("no ensemble runs lone (python")


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


# Each of 40 ensembles runs the next one twice.
DOUBLING = {f"e{n}": {"config.pbtxt": ensemble(f"e{n + 1}", f"e{n + 1}")} for n in range(40)}
DOUBLING["e40"] = {"config.pbtxt": ENSEMBLE}


@pytest.fixture
def start(fovea, triton):
    def run(folder="new", **models):
        return fovea("init", folder, "--from-triton", triton(**models), "--json")

    return run


def left_of(ran):
    code, out, err = ran
    assert (code, err) == (0, "")
    report = json.loads(out)
    return "; ".join(
        report["problems"] + [text for one in report["networks"] for text in one["left"]]
    )


def test_nothing_is_run(start, tmp_path):
    source = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    files = python(f"import helper\n{source}", **{"1/helper.py": source})
    models = {"pre": files, "digits": NETWORK, "all": {"config.pbtxt": ensemble("pre", "digits")}}
    assert start(**models)[0] == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ({"pre": python(b"\0\xff\xfe garbage"), "digits": NETWORK}, "pre"),
        ({"pre": python("def execute(:\n"), "digits": NETWORK}, "pre"),
        ({"pre": {"config.pbtxt": "name: ]", "1/model.py": ""}, "digits": NETWORK}, "line 1"),
        ({"pre": {"config.pbtxt": b"\xff\0", "1/model.py": ""}, "digits": NETWORK}, "pre/config"),
        ({"digits": {"1/model.onnx": b""}}, "model.onnx"),
        ({"digits": {"1/model.onnx": b"\x08\x07garbage"}}, "model.onnx"),
        ({"digits": NETWORK, **DOUBLING}, "exceeds the limit"),
    ],
)
def test_what_is_broken_is_named(start, models, named):
    assert named in left_of(start(**models))


def test_ensembles_that_wait_for_one_another(start):
    circle = f"{ENSEMBLE}input {BYTES}\nensemble_scheduling {{ step [ {step('digits', 'b', 'a')}, "
    circle += f"{step('digits', 'a', 'b')} ] }}"
    said = left_of(
        start(
            digits=NETWORK,
            first={"config.pbtxt": ensemble("second")},
            second={"config.pbtxt": ensemble("first")},
            third={"config.pbtxt": circle},
            fourth={"config.pbtxt": ensemble("absent")},
        )
    )
    for named in ("first -> second -> first", "ensemble third", "'absent'"):
        assert named in said


def test_paths_that_lead_out(start, triton, tmp_path):
    (tmp_path / "secret.txt").write_text("secret\n")
    (tmp_path / "secret.py").write_text("")
    named = 'default_model_filename: "../../../secret.py"\n'
    labels = 'output [{ name: "output0" label_filename: "../../secret.txt" }]\n'
    folder = triton(
        pre=python("", PYTHON + named),
        linked={"config.pbtxt": PYTHON},
        digits=NETWORK | {"config.pbtxt": labels},
        all={"config.pbtxt": ensemble("pre", "linked", "digits")},
    )
    (folder / "linked/1/model.py").symlink_to(tmp_path / "secret.py")
    said = left_of(start())
    assert said.count("outside the repository: ") >= 2
    assert "the label file ../../secret.txt is missing" in said
    assert not (tmp_path / "new/models/digits.txt").exists()


def test_nothing_is_written_outside_of_the_model(start, tmp_path):
    """Paths lead out of the folder of a model, and back into the repository."""
    back = f"../../../../../../../../../..{tmp_path}/triton"
    labels = f'output [{{ name: "y" label_filename: "{back}/labelled/names" }}]\n'
    code, out, _ = start(
        labelled=relu() | {"config.pbtxt": labels, "names": "a\n"},
        named=relu() | {"config.pbtxt": f'default_model_filename: "{back}/labelled/1/model.onnx"'},
    )
    assert code == 0
    labelled, named = json.loads(out)["networks"]
    assert labelled["files"] == [
        "repository/labelled/1/model.onnx",
        "repository/labelled/config.pbtxt",
    ]
    assert named["files"] == []
    assert "is outside the repository" in named["left"][0]


def test_a_pipe_and_a_circle_of_links_are_not_read(start, triton):
    folder = triton(pre={"config.pbtxt": PYTHON}, post={"config.pbtxt": PYTHON}, digits=NETWORK)
    os.mkfifo(folder / "pre/1/model.py")
    (folder / "post/1/model.py").symlink_to("model.py")
    assert start()[0] == 0


def test_a_folder_that_is_no_model(fovea, triton):
    (triton() / "scripts").mkdir(parents=True)
    folder = triton(digits={"config.pbtxt": 'platform: "onnxruntime_onnx"'})
    code, out, _ = fovea("init", "new", "--from-triton", folder)
    assert code == 0
    assert "problem: scripts is not a model" in out
    assert "fovea build models/scripts.onnx" not in out
    assert "fovea build models/digits.onnx  # once the file is there" in out
    assert "serves the repository unchanged" not in out


def test_what_takes_tensors_stays_as_it_is(fovea, triton, tmp_path, monkeypatch):
    config = 'platform: "onnxruntime_onnx"\nmax_batch_size: 0\n'
    folder = triton(simple=relu() | {"config.pbtxt": config}, digits=NETWORK)
    monkeypatch.chdir(tmp_path)
    code, said, _ = fovea("init", "new", "--from-triton", folder)
    assert code == 0
    assert f"`fovea serve {folder}` serves the repository unchanged" in said
    kept = tmp_path / "new" / "repository" / "simple"
    assert (kept / "config.pbtxt").read_text() == config
    assert (kept / "1" / "model.onnx").read_bytes() == relu()["1/model.onnx"]
    assert "fovea build models/simple.onnx" not in said


@pytest.mark.parametrize(
    ("models", "project", "place", "told"),
    [
        ({"digits": NETWORK}, "new", "", "give {}/triton"),
        ({"digits": NETWORK}, "new", "triton/digits", "give its repository, {}/triton"),
        ({"digits": NETWORK}, "triton", "triton", "a new folder"),
        ({"pre": python()}, "new", "triton", "no model that can be migrated"),
        ({"digits": NETWORK}, "used", "triton", "already contains from-triton.json"),
    ],
)
def test_what_is_refused_writes_nothing(fovea, triton, tmp_path, models, project, place, told):
    triton(**models)
    (tmp_path / "used").mkdir()
    (tmp_path / "used/from-triton.json").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = fovea("init", project, "--from-triton", tmp_path / place)
    assert (code, out) == (2, "")
    assert told.format(tmp_path) in err
    assert sorted(tmp_path.rglob("*")) == before
