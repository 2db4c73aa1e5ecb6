"""`fovea init --from-triton` on what is broken, hostile or not there; nothing of it is run."""

import json
import os

import pytest
from tests.server.cli.from_triton.written import (
    BYTES,
    ENSEMBLE,
    NETWORK,
    PYTHON,
    ensemble,
    python,
    relu,
    step,
)

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("source", [b"\0\xff\xfe garbage", "def execute(:\n", ""])
def test_code_is_not_read(start, source):
    left_of(start(pre=python(source), digits=NETWORK))


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
    assert "ensemble first runs itself: first -> second -> first" in said
    assert "the steps digits, digits of ensemble third cannot run: a, b is no input" in said
    assert "fourth: there is no model 'absent'" in said


def test_ensembles_that_double(start):
    levels = {f"e{n}": {"config.pbtxt": ensemble(f"e{n + 1}", f"e{n + 1}")} for n in range(40)}
    assert "is too long" in left_of(start(digits=NETWORK, **levels, e40={"config.pbtxt": ENSEMBLE}))


def test_a_configuration_that_is_broken_or_absent(start):
    said = left_of(
        start(
            pre={"config.pbtxt": "name: ]", "1/model.py": ""},
            digits=NETWORK,
            bytes={"config.pbtxt": b"\xff\0", "1/model.py": ""},
        )
    )
    assert "pre/config.pbtxt is not a model configuration: line 1" in said
    assert "bytes/config.pbtxt is not a model configuration" in said


@pytest.mark.parametrize("content", [b"", b"\x08\x07garbage", b"\0" * 100])
def test_a_network_that_is_no_onnx(start, content):
    assert "model.onnx" in left_of(start(digits={"1/model.onnx": content}))


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
    assert said.count("leads out of the repository: put a copy in its place") >= 2
    assert "../../secret.txt is not in the repository" in said
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
    assert "leads out of the repository" in named["left"][0]


def test_a_pipe_and_a_circle_of_links_are_not_read(start, triton):
    folder = triton(pre={"config.pbtxt": PYTHON}, post={"config.pbtxt": PYTHON}, digits=NETWORK)
    os.mkfifo(folder / "pre/1/model.py")
    (folder / "post/1/model.py").symlink_to("model.py")
    assert start()[0] == 0


def test_a_folder_around_a_repository_and_one_inside(fovea, triton):
    folder = triton(digits=NETWORK)
    code, _, err = fovea("init", "new", "--from-triton", folder.parent)
    assert (code, f"its folder triton has: give {folder}" in err) == (2, True), err
    code, _, err = fovea("init", "new", "--from-triton", folder / "digits")
    assert (code, f"the folder of one model: give the repository, {folder}" in err) == (2, True)


def test_a_folder_that_is_no_model(fovea, triton):
    (triton() / "scripts").mkdir(parents=True)
    folder = triton(digits={"config.pbtxt": 'platform: "onnxruntime_onnx"'})
    code, out, _ = fovea("init", "new", "--from-triton", folder)
    assert code == 0
    assert "not read: scripts is no model" in out
    assert "fovea build models/scripts.onnx" not in out
    assert "fovea build models/digits.onnx  # once the file is there" in out
    assert "serves the repository as it is" not in out


def test_what_takes_tensors_stays_as_it_is(fovea, triton, tmp_path, monkeypatch):
    config = 'platform: "onnxruntime_onnx"\nmax_batch_size: 0\n'
    folder = triton(simple=relu() | {"config.pbtxt": config}, digits=NETWORK)
    monkeypatch.chdir(tmp_path)
    code, said, _ = fovea("init", "new", "--from-triton", folder)
    assert code == 0
    assert f"`fovea serve {folder}` serves the repository as it is" in said
    kept = tmp_path / "new" / "repository" / "simple"
    assert (kept / "config.pbtxt").read_text() == config
    assert (kept / "1" / "model.onnx").read_bytes() == relu()["1/model.onnx"]
    assert "fovea build models/simple.onnx" not in said


def test_without_a_network(start):
    code, _, err = start(pre=python(""))
    assert code == 2
    assert "has no network to go on with" in err


def test_the_repository_is_not_written_to(fovea, triton):
    folder = triton(digits=NETWORK)
    code, _, err = fovea("init", ".", "--from-triton", folder.rename(folder.parent / "models"))
    assert code == 2
    assert "stays as it is: give the name of a new folder" in err


def test_nothing_is_overwritten(start, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/from-triton.json").write_text("mine")
    code, _, err = start(digits=NETWORK)
    assert code == 2
    assert "has from-triton.json already" in err
    assert not (tmp_path / "new/models").exists()
