"""Mistakes of a first day: each ends in one line that says what to do next, and no traceback."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fovea_server.cli import main

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "fovea_server.cli.main")
ORT = ("--backend", "onnxruntime")
INT8 = ("--precision", "int8", "--calibration", "images")
COMMANDS = {name: target for panel in main.COMMANDS.values() for name, target in panel.items()}

# A command line, and the name that the last line must give the user.
MISTAKES = [
    ((), "no command was given"),
    (("biuld", "m.onnx"), "'build'"),
    (("build",), "MODEL.onnx"),
    (("build", "yolo.onx"), "yolo.onnx?"),
    (("build", "yolo.onnx", "--images", "imags"), "images?"),
    (("build", "nothing-like-it"), "check the path"),
    (("build", "https://example.com/m.onnx"), "download the file first"),
    (("build", "images"), "is a folder"),
    (("build", "yolo.pt"), "PyTorch"),
    (("build", "yolo.pth"), "torch.onnx.export"),
    (("build", "savedmodel"), "tf2onnx.convert --saved-model savedmodel --output model.onnx"),
    (("build", "m.keras"), "tf2onnx.convert"),
    (("build", "m.tflite"), "tf2onnx.convert --tflite m.tflite --output model.onnx"),
    (("build", "m.engine"), "TensorRT"),
    (("build", "m.xml"), "OpenVINO"),
    (("build", "images/a.jpg"), "cannot be parsed"),
    (("build", "broken.onnx"), "not an ONNX model"),
    (("build", "yolo.onnx", "--max-batch", "0"), "1"),
    (("build", "yolo.onnx", "--device", "0"), "`--backend tensorrt`"),
    (("build", "yolo.onnx", "--half"), "`fovea build --precision fp16`"),
    (("build", "yolo.onnx", "--repository", "file"), "is a file"),
    (("build", "tiny.onnx", "--size", "big"), "HEIGHTxWIDTH"),
    (("build", "tiny.onnx", "--size", "96"), "`fovea edit tiny.onnx --size 96x96 --out tiny-"),
    (("build", "tiny.onnx", "--name", "../x"), "is not a valid model name"),
    (("build", "tiny.onnx", "--images", "."), "no image"),
    (("build", "tiny.onnx", "--imgsz", 64), "`fovea build --size HxW`"),
    (("build", "tiny.onnx", "--qqqq"), "--qqqq"),
    (("build", "tiny.onnx", "--precision", "int8"), "--calibration DIR"),
    (("build", "model.onnx", "--backend", "cuda"), "tensorrt-rtx"),
    (("serve", "nothere"), "`fovea build`"),
    (("serve", "yolo.onnx"), "`fovea build yolo.onnx`"),
    (("serve", "--prot", "8000"), "--port?"),
    (("inspect", "nothere"), "`fovea build MODEL.onnx`"),
    (("inspect", "absent.onnx"), "absent.onnx"),
    (("inspect", "."), "has no model"),
    (("inspect", "--repository", "models", "nothere"), "people"),
    (("inspect", "--repository", "models", "peple"), "people?"),
    (("eval", "people", "--data", "vla.json"), "val.json?"),
    (("predict", "images/a.jpg", "people"), "fovea predict people images/a.jpg"),
    (("predict", "images/a.jpg", "images"), "fovea predict MODEL images/a.jpg images"),
    (("predict", "images", "people", "--repository", "models"), "fovea predict people images"),
    (("predict", "m", "images", "--save", "seen"), "--out DIR --format annotated"),
    (("watch", "m", "absent.mp4"), "a video file, a device"),
    (("bench", "m", "--mlperf", "Offline"), "benchmarks/mlperf.py"),
    (("promote", "m", 2, "--canary", "70%"), "--canary is 70%, but must be from 0.1% to 50%"),
    (("sensitivity", "tiny.onnx"), "'--calibration'"),
    (("demo", "--task", "depth-estimation"), "'detect', 'segment'"),
    (("demo", "--folder", "file/below"), "permissions"),
    (("ray", "deploy"), "--repository"),
    (("ray", "deploy", "--repository", "other", "--config", "a.yaml"), "not both"),
    (("ray", "deploy", "--config", "file"), "file must contain"),
    (("ray", "deploy", "--config", "no.yaml"), "no.yaml is not YAML"),
    # An option that would be ignored.
    (("build", "tiny.onnx", "--hint", "latency", "--backend", "openvino"), "--hint"),
    (("build", "tiny.onnx", "--precision", "auto", "--backend", "tensorrt"), "is for CPUs"),
    (("build", "tiny.onnx", "--precision", "auto", "--tensorrt", "t.onnx"), "--tensorrt"),
    (("build", "tiny.onnx", "--precision", "bf16", *ORT), "--backend openvino"),
    (("build", "tiny.onnx", "--calibration", "images"), "without --precision"),
    (("build", "tiny.onnx", "--calibrator", "minmax"), "without --precision int8"),
    (("build", "tiny.onnx", "--exclude-nodes", "none", "--precision", "fp16"), "--exclude-nodes"),
    (("build", "tiny.onnx", *INT8, "--exclude-nodes", "auto", "--exclude-nodes", "x"), "only one"),
    (("build", "tiny.onnx", "--max-drop", 0.01), "without --data"),
    (("build", "tiny.onnx", "--workspace", 64), "--backend tensorrt or tensorrt-rtx"),
    (("build", "tiny.onnx", "--builder-level", 3), "--builder-level"),
    (("build", "tiny.onnx", "--plugin", "tiny.onnx"), "--plugin"),
    (("build", "tiny.onnx", "--compute-capability", 80, "--backend", "tensorrt"), "tensorrt-rtx"),
    (("build", "tiny.onnx", "--profile", "1,1,1", "--max-batch", 1), "--profile"),
    (("inspect", "tiny.onnx", "--repository", "r"), "--repository"),
    (("diff", "tiny.onnx", "tiny.onnx", "--all", "--json"), "--all or --json, not both"),
    (("diff", "tiny.onnx", "tiny.onnx", "--values", "--json"), "--values or --json, not both"),
    (("diff", "tiny.onnx", "tiny.onnx", "--repository", "r"), "--repository"),
    (("inspect", "tiny.onnx", "--head", "yolov8", "--layers"), "--head or --layers, not both"),
    (("predict", "tiny.onnx", "images/a.jpg", "--url", "u", "--repository", "r"), "not both"),
    (("eval", "tiny.onnx", "--data", "images", "--url", "u", "--repository", "r"), "not both"),
    # Paths are looked at before models, of which these are none.
    (("build", "m", "--labels", "absent"), "--labels"),
    (("build", "m", "--images", "absent"), "--images"),
    (("build", "m", "--data", "absent"), "--data"),
    (("build", "m", "--precision", "int8", "--calibration", "absent"), "--calibration"),
    (("build", "m", "--data", "names.json", "--images", "images"), "names.json"),
    (("sensitivity", "m", "--calibration", "absent"), "--calibration"),
    (("sensitivity", "m", "--calibration", "empty"), "empty has no image"),
    (("sensitivity", "m", "--calibration", "images", "--size", "big"), "HEIGHTxWIDTH"),
    (("sensitivity", "m", "--calibration", "images", "--preprocess", "x"), "yolo"),
    (("diff", "m", "m", "--images", "absent"), "--images"),
    (("diff", "m", "absent.onnx"), "absent.onnx"),
    (("predict", "m", "absent.jpg"), "absent.jpg"),
    (("predict", "m", "empty"), "empty has no image"),
    (("predict", "m", "http://a.b/c.jpg"), "http://a.b/c.jpg is a URL"),
    (("predict", "m", "rtsp://cam/1"), "fovea watch MODEL rtsp://cam/1"),
    (("predict", "m", "/dev/video0"), "/dev/video0 is a camera"),
    (("predict", "m", "0"), "0 is a camera"),
    (("eval", "here/m", "--data", "absent"), "--data"),
    (("eval", "here/m", "--data", "names.json", "--images", "absent"), "--images"),
    (("eval", "here/m", "--data", "names.json", "--images", "images"), "does not exist"),
]


@pytest.fixture
def first_day(tiny_model, tmp_path):
    """A folder with what a new user has."""
    for folder in ("images", "savedmodel", "models/people/1", "empty", "here/m/1"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("yolo.onnx", "yolo.pth", "m.keras", "m.tflite", "m.engine", "m.xml", "file"):
        (tmp_path / name).write_text("not what it is called")
    for name in ("m", "here/m/1/model.onnx"):
        (tmp_path / name).write_bytes(b"no model")
    (tmp_path / "yolo.pt").write_bytes(b"PK\x03\x04 an archive")
    (tmp_path / "savedmodel" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "tiny.onnx").write_bytes(tiny_model.read_bytes())
    (tmp_path / "broken.onnx").write_bytes(tiny_model.read_bytes()[:500])
    (tmp_path / "images" / "a.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "val.json").write_text("{}")
    (tmp_path / "a.yaml").write_text("repository: models")
    (tmp_path / "no.yaml").write_text("models: {digits: [")
    image = {"id": 1, "file_name": "absent.jpg", "width": 1, "height": 1}
    document = {"images": [image], "annotations": [], "categories": []}
    (tmp_path / "names.json").write_text(json.dumps(document))


@pytest.mark.parametrize(("typed", "says"), MISTAKES, ids=lambda one: " ".join(map(str, one))[:60])
def test_the_last_line_says_what_to_do(fovea, first_day, tmp_path, typed, says):
    code, out, err = fovea(*typed)
    assert code in (1, 2)
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert says in last
    assert "Value error" not in err
    assert not (tmp_path / "repository").exists()


# A buffer that cannot be written is tried again as the interpreter ends, with exit code 120.
@pytest.mark.parametrize(("typed", "unbuffered"), [("inspect", ""), ("--version", "1")])
def test_output_that_cannot_be_written(demo_repository, typed, unbuffered):
    command = [*COMMAND, typed, *([str(demo_repository)] if typed == "inspect" else [])]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr.splitlines()[-1]


def test_the_repository_is_that_of_the_option_else_of_the_variable(
    fovea, tiny_model, images, tmp_path, monkeypatch
):
    image = images / "0.png"
    code, out, _ = fovea("build", tiny_model)
    assert code == 0
    assert out.splitlines()[-1] == "Serve it: fovea serve"
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", str(tmp_path / "of all"))
    assert fovea("predict", "tiny", image)[0] == 2
    code, out, _ = fovea("build", tiny_model, "--name", "there")
    assert out.splitlines()[-1] == "Serve it: fovea serve"
    assert (tmp_path / "of all" / "there" / "1" / "card.json").is_file()
    code, out, _ = fovea("build", tiny_model, "--name", "here", "--repository", "my models")
    assert out.splitlines()[-1] == "Serve it: fovea serve 'my models'"
    here = ("--repository", "my models")
    for name, option in (
        ("there", ()),
        ("here", here),
        ("my models/here", ()),
        ("repository/tiny/1", ()),
    ):
        code, out, err = fovea("predict", name, image, *option, "--json")
        assert code == 0, err
        [entry] = json.loads(fovea("inspect", name, *option, "--json")[1])
        assert (entry["name"], entry["version"]) == (json.loads(out)["model"], 1)
        assert fovea("diff", tiny_model, name, *option)[0] == 0
    assert [e["name"] for e in json.loads(fovea("inspect", "--json")[1])] == ["there"]
    assert [e["name"] for e in json.loads(fovea("inspect", *here, "--json")[1])] == ["here"]
    assert fovea("predict", "here", image)[0] == 2


@pytest.mark.parametrize(("name", "target"), COMMANDS.items())
def test_a_command_is_a_function_or_a_program_and_has_help(name, target):
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, typer.Typer) or callable(found)
    short, long = (CliRunner().invoke(main.app, [name, flag]).output for flag in ("-h", "--help"))
    assert short == long
    assert not re.search(r"\w-$", long, re.MULTILINE)  # flags and paths are whole
    assert f" {name}" in short.splitlines()[0]
    lines = CliRunner().invoke(main.app, ["--help"]).output.splitlines()
    [line] = [line for line in lines if line.startswith(f"  {name} ")]
    assert len(line.split(maxsplit=1)[1]) > 20


def test_ray_is_imported_by_its_command_alone(fovea, tmp_path):
    code = "import sys; import fovea_server.cli.ray; print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ModuleNotFoundError(name='ray')")
    command = [*COMMAND, "ray", "deploy", "--repository", "models"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, check=False
    )
    assert (done.returncode, "[ray]" in done.stderr) == (2, True), done.stderr


def test_a_repository_in_a_store_is_for_serve_alone(fovea, tiny_model, monkeypatch, tmp_path):
    store = "s3://key:hush@bucket/models"
    for arguments in (
        ("build", tiny_model),
        ("predict", "tiny", "image.png"),
        ("inspect",),
        ("bench", "tiny", "--images", tmp_path),
        ("eval", "tiny", "--data", tmp_path),
    ):
        code, _, err = fovea(*arguments, "--repository", store)
        monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", store)
        assert (code, err) == (2, fovea(*arguments)[2])
        monkeypatch.delenv("FOVEA_MODEL_REPOSITORY")
        assert "`aws s3 sync s3://bucket/models repository`" in err
        assert "hush" not in err
        assert not (tmp_path / "s3:").exists()
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", store)
    err = fovea("predict", "tiny", "image.png", "--url", "http://127.0.0.1:1")[2]
    assert "needs a local folder" not in err
