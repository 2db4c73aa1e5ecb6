"""Mistakes of a first day: each ends in one line that says what to do next, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


MISTAKES = [
    (("biuld", "m.onnx"), "Did you mean 'build'?"),
    (("build", "yolo.onx"), "did you mean yolo.onnx?"),
    (("build", "yolo.onnx", "--images", "imags"), "did you mean images?"),
    (("build", "nothing-like-it"), "check the path"),
    (("build", "https://example.com/m.onnx"), "it is an address: download the file first"),
    (("build", "images"), "is a folder: give the .onnx file in it"),
    (("build", "yolo.pt"), "PyTorch's: export it to ONNX"),
    (("build", "yolo.pth"), "torch.onnx.export"),
    (("build", "savedmodel"), "tf2onnx.convert --saved-model savedmodel --output model.onnx"),
    (("build", "m.keras"), "TensorFlow's: `python -m tf2onnx.convert"),
    (("build", "m.tflite"), "tf2onnx.convert --tflite m.tflite --output model.onnx"),
    (("build", "m.engine"), "an engine of TensorRT, which fits one kind of GPU: give the ONNX"),
    (("build", "m.xml"), "an engine of OpenVINO: give the ONNX file that it was made of"),
    (("build", "images/a.jpg"), "cannot be parsed): copy or export it again"),
    (("build", "yolo.onnx", "--max-batch", "0"), "it must be greater than or equal to 1"),
    (("build", "yolo.onnx", "--device", "0"), "a GPU is `--backend tensorrt`"),
    (("build", "yolo.onnx", "--half"), "FP16 is `fovea build --precision fp16`"),
    (("build", "yolo.onnx", "--repository", "file"), "is a file"),
    (("serve", "nothere"), "make one with `fovea build`"),
    (("serve", "yolo.onnx"), "`fovea build yolo.onnx` makes an engine"),
    (("serve", "--prot", "8000"), "did you mean --port?"),
    (("inspect", "nothere"), "`fovea build MODEL.onnx` makes one"),
    (("inspect", "--repository", "models", "nothere"), "its models are people"),
    (("inspect", "--repository", "models", "peple"), "did you mean people?"),
    (("eval", "people", "--data", "vla.json"), "did you mean val.json?"),
    (("predict", "images/a.jpg", "people"), "images: fovea predict people images/a.jpg"),
    (("predict", "images/a.jpg", "images"), "images: fovea predict MODEL images/a.jpg images"),
    (("predict", "images", "people", "--repository", "models"), "fovea predict people images"),
    (("build", "model.onnx", "--backend", "cuda"), "a GPU is used by tensorrt and tensorrt-rtx"),
    (("demo", "--task", "detection"), "is not one of 'detect', 'segment'"),
    (("demo", "--folder", "file/below"), "give another path, or mend its permissions"),
    # A command that cannot be understood, and a model that cannot be read.
    (("build", "absent.onnx"), "'absent.onnx' does not exist"),
    (("build", "tiny.onnx", "--size", "big"), "HEIGHTxWIDTH"),
    (("build", "tiny.onnx", "--size", "96"), "`fovea edit tiny.onnx --size 96x96 --out tiny-"),
    (("build", "tiny.onnx", "--name", "../x"), "cannot name a model"),
    (("build", "tiny.onnx", "--labels", "broken.onnx"), "labels"),
    (("build", "tiny.onnx", "--images", "."), "no image"),
    (("build", "tiny.onnx", "--precision", "int4"), "'int4' is not one of 'auto', 'fp32'"),
    (("build", "tiny.onnx", "--precison", "fp16"), "did you mean --precision?"),
    (("build", "tiny.onnx", "--imgsz", 64), "input size is `fovea build --size HxW`; see"),
    (("build", "tiny.onnx", "--qqqq"), "No such option: --qqqq; see"),
    (("build", "tiny.onnx", "--precision", "int8"), "INT8 needs --calibration DIR"),
    (("build",), "name the file to build, MODEL.onnx"),
    (("build", "broken.onnx"), "not a whole ONNX model"),
    (("predict", "tiny.onn", "a.jpg", "--imgsz", 64), "`fovea build --size HxW`; see"),
    (("sensitivity", "tiny.onnx"), "Missing option '--calibration'"),
    (("inspect", "absent.onnx"), "no file or folder absent.onnx"),
    (("inspect", "tiny.onnx", "--repository", "r"), "--repository has no effect"),
    (("inspect", "."), "has no model"),
    ((), "give one of these commands"),
    # An option that would be ignored.
    (
        ("build", "tiny.onnx", "--for", "latency", "--backend", "openvino"),
        "--for has no effect without",
    ),
    (
        ("build", "tiny.onnx", "--precision", "auto", "--backend", "tensorrt"),
        "--precision auto is for CPUs",
    ),
    (
        ("build", "tiny.onnx", "--precision", "auto", "--tensorrt", "t.onnx"),
        "--tensorrt writes one",
    ),
    (
        ("build", "tiny.onnx", "--precision", "bf16", "--backend", "onnxruntime"),
        "is for --backend openvino",
    ),
    (
        ("build", "tiny.onnx", "--calibration", "images"),
        "--calibration has no effect without --precision",
    ),
    (
        ("build", "tiny.onnx", "--calibrator", "minmax"),
        "--calibrator has no effect without --precision int8",
    ),
    (
        ("build", "tiny.onnx", "--keep-float", "none", "--precision", "fp16"),
        "--keep-float has no effect",
    ),
    (("build", "tiny.onnx", "--max-drop", 0.01), "--max-drop has no effect without --data"),
    (("build", "tiny.onnx", "--workspace", 64), "without --backend tensorrt or tensorrt-rtx"),
    (("build", "tiny.onnx", "--builder-level", 3), "--builder-level has no effect"),
    (("build", "tiny.onnx", "--plugin", "tiny.onnx"), "--plugin has no effect"),
    (
        ("build", "tiny.onnx", "--compute-capability", 80, "--backend", "tensorrt"),
        "without --backend tensorrt-rtx",
    ),
    (("build", "tiny.onnx", "--profile", "1,1,1", "--max-batch", 1), "--profile has no effect"),
    (("diff", "tiny.onnx", "tiny.onnx", "--all", "--json"), "give --all or --json, not both"),
    (("diff", "tiny.onnx", "tiny.onnx", "--values", "--json"), "give --values or --json, not both"),
    (("diff", "tiny.onnx", "tiny.onnx", "--repository", "r"), "--repository has no effect"),
    (("inspect", "tiny.onnx", "--head", "yolov8", "--layers"), "give --head or --layers, not both"),
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
    (("sensitivity", "m", "--calibration", "images", "--preprocess", "x"), "none of yolo"),
    (("diff", "m", "m", "--images", "absent"), "--images"),
    (("diff", "m", "absent.onnx"), "absent.onnx"),
    (("predict", "m", "absent.jpg"), "absent.jpg: there is no such file"),
    (("predict", "m", "empty"), "empty has no image"),
    (("predict", "m", "http://a.b/c.jpg"), "http://a.b/c.jpg is an address"),
    (("predict", "m", "rtsp://cam/1"), "fovea watch MODEL rtsp://cam/1"),
    (("predict", "m", "/dev/video0"), "/dev/video0 is a camera"),
    (("predict", "m", "0"), "0 is a camera"),
    (("eval", "here/m", "--data", "absent"), "--data"),
    (("eval", "here/m", "--data", "names.json", "--images", "absent"), "--images"),
    (("eval", "here/m", "--data", "names.json", "--images", "images"), "there is no image"),
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
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("typed", [["inspect"], ["inspect", "--help"], ["--version"]])
def test_output_that_cannot_be_written(demo_repository, typed, unbuffered):
    command = [sys.executable, "-m", "fovea_server.cli.main", *typed]
    command += [str(demo_repository)] * (typed == ["inspect"])
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
    assert done.stderr.splitlines()[-1].endswith("(No space left on device): free some space")


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


def test_help_of_build_fits_80_columns(fovea, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, fovea("build", "--help")[1].splitlines())) <= 80


@pytest.mark.parametrize("columns", ["60", "80"])
def test_the_list_of_commands_is_whole(fovea, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    shown = fovea("--help")[1]
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown[shown.index("First steps:") :]


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
    assert "takes a folder" not in err
