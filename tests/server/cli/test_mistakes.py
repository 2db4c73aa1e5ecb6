"""Mistakes of a first day: each ends in one line that says what to do next, and no traceback."""

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
]


@pytest.fixture
def first_day(tmp_path):
    """A folder with what a new user has."""
    for name in ("yolo.onnx", "yolo.pth", "m.keras", "m.tflite", "m.engine", "m.xml", "file"):
        (tmp_path / name).write_text("not what it is called")
    (tmp_path / "yolo.pt").write_bytes(b"PK\x03\x04 an archive")
    (tmp_path / "val.json").write_text("{}")
    for folder in ("images", "savedmodel", "models/people/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "savedmodel" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "images" / "a.jpg").write_bytes(b"\xff\xd8\xff")


@pytest.mark.parametrize(("typed", "says"), MISTAKES, ids=lambda one: " ".join(one)[:40])
def test_the_last_line_says_what_to_do(fovea, first_day, typed, says):
    code, out, err = fovea(*typed)
    assert code in (1, 2)
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert says in last


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
