"""`fovea init` and `init --head`: what they say is done, word for word, and ends with boxes."""

import json
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conftest import DEMO
from tests.forked import forked_fovea, on_path
from tests.odd import odd_model
from tests.serving import free_ports, wait_until_ready

pytestmark = pytest.mark.slow

# From anywhere: the working folder is that of the fixture `fovea`.
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def own_ports(monkeypatch, tmp_path_factory):
    """`fovea` is on the path, and serves on ports of its own: that of HTTP."""
    ports = free_ports(3)
    for kind, port in zip(("HTTP", "GRPC", "METRICS"), ports, strict=True):
        monkeypatch.setenv(f"FOVEA_{kind}_PORT", str(port))
    monkeypatch.setenv("PATH", on_path(tmp_path_factory.mktemp("program")))
    return ports[0]


def test_what_it_says_leads_to_boxes(fovea, tmp_path, own_ports):
    code, said, err = fovea("init", "my shop")
    assert (code, err) == (0, "")
    enter, build, serve, again, detect = re.findall(r"^    (.+)$", said, re.MULTILINE)
    assert enter == again == "cd 'my shop'"
    folder = tmp_path / shlex.split(enter)[1]
    in_readme = "".join(BLOCK.findall((folder / "README.md").read_text())).splitlines()
    assert in_readme == [build, serve, detect]
    client = folder / "detect.py"
    client.write_text(client.read_text().replace("8000", str(own_ports)))
    subprocess.run(build, cwd=folder, shell=True, check=True, capture_output=True)
    server = subprocess.Popen(shlex.split(serve), cwd=folder, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(own_ports)
        found = subprocess.check_output(detect, cwd=folder, shell=True, text=True)
    finally:
        server.terminate()
        assert server.wait(120) == 0
    assert len(found.splitlines()) > 5
    assert found.splitlines()[0].startswith("digits.jpg: 5 0.9")


def test_nothing_is_overwritten(fovea, tmp_path):
    assert fovea("init", "shop")[0] == 0
    (tmp_path / "shop" / "compose.yaml").write_text("mine")
    (tmp_path / "shop" / "detect.py").unlink()
    code, out, err = fovea("init", "shop")
    assert (code, out) == (2, "")
    assert "README.md, compose.yaml, digits.jpg, models/digits.onnx" in err
    assert (tmp_path / "shop" / "compose.yaml").read_text() == "mine"
    assert not (tmp_path / "shop" / "detect.py").exists()


# Heads of models that Fovea does not know.

BUILT = ("--repository", "r", "--backend", "onnxruntime")


def passes(folder) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_head.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode == 0 and "2 passed" in done.stdout


def without_batch(path):
    """Write a model whose one output is rows of 6, more for some images than for others."""
    rows = numpy_helper.from_array(np.ones((4, 6), np.float32), "rows")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 64, 64])
    out = helper.make_tensor_value_info("found", TensorProto.FLOAT, ["boxes", 6])
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["rows", "mean"], ["found"]),
    ]
    graph = helper.make_graph(nodes, "g", [image], [out], [rows])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def with_maps(path):
    """Write a model of maps for cells of 4 pixels: scores of 3 classes, and boxes."""
    floats = TensorProto.FLOAT
    image = helper.make_tensor_value_info("image", floats, [1, 3, 64, 96])
    maps = [
        helper.make_tensor_value_info(name, floats, [1, channels, 16, 24])
        for name, channels in (("heat", 3), ("where", 4))
    ]
    made = numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "weights")
    nodes = [
        helper.make_node("AveragePool", ["image"], ["heat"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Conv", ["heat", "weights"], ["where"]),
    ]
    graph = helper.make_graph(nodes, "g", [image], maps, [made])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


@pytest.mark.parametrize("kind", ["nothing", "pairs", "columns", "rows", "maps"])
def test_what_it_writes_passes_its_test_and_has_the_outputs_of_the_model(
    fovea, tmp_path, demo_model, kind
):
    model = tmp_path / "model.onnx"
    match kind:
        case "pairs":
            odd_model(demo_model, model)
        case "columns":
            model = demo_model
        case "rows":
            without_batch(model)
        case "maps":
            with_maps(model)
    given = [] if kind == "nothing" else ["--model", model]
    code, out, err = fovea("init", "--head", "my_head.py", *given)
    assert (code, err) == (0, "")
    assert "fovea build" in out
    names = {"nothing": "boxes", "columns": "output0", "rows": "found"}
    text = (tmp_path / "my_head.py").read_text()
    assert f'outputs = ("{names.get(kind, "where")}"' in text
    assert ("np.indices((16, 24))" in text) == (kind == "maps")
    assert ("batched = False" in text) == (kind == "rows")
    assert passes(tmp_path)


def test_it_leads_to_boxes(fovea, tmp_path, demo_model):
    odd_model(demo_model, tmp_path / "odd.onnx")
    code, out, _ = fovea("build", "odd.onnx", "--repository", "first", "--backend", "onnxruntime")
    assert code == 0
    assert "`fovea init --head`" in " ".join(out.replace("│", "").split())
    fovea("init", "--head", "my_head.py", "--model", "odd.onnx")
    head = tmp_path / "my_head.py"
    begun = head.read_text()
    head.write_text(
        begun.replace(
            "        # A score is", "        boxes = corners(256 * boxes[:, [1, 0, 3, 2]])\n#", 1
        )
    )
    code, out, err = fovea("build", "odd.onnx", "--head", "my_head.py", *BUILT, "--json")
    assert code == 0, err
    card = json.loads(out)["card"]
    assert card["agreement"]["detections"] > 0
    assert (tmp_path / "r" / "odd" / "1" / "head.py").read_text() == head.read_text()

    scene = DEMO / "scene-1.jpg"
    code, out, err = fovea("predict", "odd", scene, "--repository", "r")
    assert (code, out) == (2, "")
    assert "odd/1/head.py: run it with --allow-code" in err
    code, out, _ = fovea("predict", "odd", scene, "--repository", "r", "--allow-code", "--json")
    found = json.loads(out)["images"][0]["detections"]
    assert [one["class_id"] for one in found[:3]] == [5, 6, 9]
    load = ("--images", DEMO, "--clients", "1", "--seconds", "0.2", "--warmup", "0", "--json")
    code, out, err = fovea("bench", "odd", "--repository", "r", "--allow-code", *load)
    assert code == 0, err
    assert json.loads(out)["levels"][0]["answers"] > 0

    head.write_text(f"{head.read_text()}\n")  # it is another head now
    assert json.loads(fovea("inspect", "odd", "--repository", "r", "--json")[1])[0]["card"] == card
    code, out, _ = fovea("build", "odd.onnx", "--head", "my_head.py", *BUILT, "--json")
    assert (code, json.loads(out)["version"]) == (0, 2)
    assert fovea("rollback", "odd", "--repository", "r")[0] == 0
    code, out, _ = fovea("predict", "odd", scene, "--repository", "r", "--allow-code", "--json")
    assert code == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("boxes = boxes[:, :3]", "my_head.py, line 37: "),
        ("return boxes", "Detections"),
        ("import nothing_like_it", "my_head.py, line 33: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_it_ends_a_build_with_its_line(fovea, tmp_path, demo_model, text, told):
    odd_model(demo_model, tmp_path / "odd.onnx")
    fovea("init", "--head", "my_head.py", "--model", "odd.onnx")
    head = tmp_path / "my_head.py"
    head.write_text(head.read_text().replace("# A score is", f"{text}  #", 1))
    code, out, err = fovea("build", "odd.onnx", "--head", "my_head.py", *BUILT)
    assert (code, out) == (1, "")
    assert told in err
    assert "Traceback" not in err
    assert not (tmp_path / "r" / "odd").exists()


def test_a_signal_while_it_decodes_ends_the_build(fovea, tmp_path, demo_model):
    odd_model(demo_model, tmp_path / "odd.onnx")
    fovea("init", "--head", "my_head.py", "--model", "odd.onnx")
    head = tmp_path / "my_head.py"
    stop = "__import__('signal').raise_signal(15)"
    head.write_text(head.read_text().replace("# A score is", f"{stop}  #", 1))
    command = [*forked_fovea(), "build", "odd.onnx", "--head", "my_head.py", *BUILT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "r" / "odd").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("init", "file"), "file"),
        (("init", "--head", "my-head.py"), "my_head.py"),
        (("init", "--head", "class.py"), "my_head.py"),
        (("init", "--head", "numpy.py"), "my_head.py"),
        (("init", "--head", "made.py"), "made.py, test_made.py"),
        (("init", "--head", "my_head.py", "shop"), "not both"),
        (("init", "--model", __file__), "--head"),
        (("build", "made.py", "--head", "absent.py"), "absent.py"),
        (
            ("predict", "odd", DEMO / "scene-1.jpg", "--url", "http://h", "--allow-code"),
            "--allow-code or --url, not both",
        ),
    ],
)
def test_what_is_refused(fovea, tmp_path, arguments, told):
    (tmp_path / "file").write_text("")
    assert fovea("init", "--head", "made.py")[0] == 0
    before = sorted(tmp_path.iterdir())
    code, out, err = fovea(*arguments)
    assert code in (1, 2)
    assert out == ""
    assert told in err
    assert sorted(tmp_path.iterdir()) == before
