"""Records the files and responses of a version, which later versions must read and give, too.

    /PATH/OF/THE/OLDER/CHECKOUT/.venv/bin/python -m tests.upgrade.record v0_1_0

Run it in the root of this checkout with the Python of the other one. It rounds the weights of
models before it builds them, so that the files compress.
"""

import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.serving import RunningServer, start_server
from tests.upgrade import client_calls, grpc_calls, http_requests, interface, recording
from tests.upgrade.camera import run_camera, write_clip
from tritonclient import grpc

FOVEA = str(Path(sys.executable).with_name("fovea"))
TASKS = ("classify", "embed", "obb", "pose", "segment")
SIMPLE = """\
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "DIFFERENCE" data_type: TYPE_FP32 dims: [ 4 ] }
]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
version_policy { all { } }
"""
PIPELINE = """\
[[stages]]
model = "digits"

[[stages]]
model = "digits-classify"
name = "again"
classes = ["5", "9", "1"]
if = 0.5
min_size = 28
padding = 0.1
top_k = 2
"""
CAPTURE = """\
[capture]
rules = ["classes 5", "rate 100%"]
per_minute = 2
"""
PORCH = {
    "id": "porch",
    "model": "digits-pose",
    "fps": 5,
    "track": "bytetrack",
    "lines": ["door=0.5,0,0.5,1:anchor=center"],
    "zones": ["all=0,0,1,0,1,1,0,1"],
    "debounce": "100ms",
    "lost_after": "500ms",
    "conf": 0.5,
}
STREAMS = f"""\
[recording]
source = "{recording.CLIP}"
model = "digits-pose"
fps = 5
lines = ["middle=0.5,0,0.5,1:anchor=center"]
zones = ["all=0,0,1,0,1,1,0,1"]
debounce = "100ms"
"""
KEYS = {
    "owner": ("--scope", "predict,control,metrics,capture"),
    "camera": ("--model", "digits,cards", "--rate", "600/m", "--quota", "1000/day"),
    "plates": ("--model", "plates-*"),
    "counted": ("--quota", "5/month"),
    "slow": ("--rate", "1/h"),
    "scraper": ("--scope", "metrics"),
    "steward": ("--scope", "control", "--model", "digits"),
    "leaked": (),
    "gone": (),
    "expired": ("--expires", "1s"),
}


def main() -> None:
    """Record everything into the folder that the first argument names."""
    data = Path(__file__).parent / sys.argv[1]
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    with tempfile.TemporaryDirectory(prefix="fovea-record-") as name:
        work = Path(name)
        os.chdir(work)
        demo = _find_demo()
        _write_images(demo, data / "images")
        shutil.copytree(data / "images", work / "images")
        _set_times(work / "images")
        _build(demo, work)
        _promote()
        write_clip(data / "clip.mp4", data / "images" / "digit.jpg")
        _search_and_predict(work, data)
        _record_keys(work, data)
        with run_camera(data / "images" / "digit.jpg") as camera:
            urls = {str(data / "clip.mp4"): recording.CLIP, camera: recording.CAMERA}
            toml = STREAMS.replace(recording.CLIP, str(data / "clip.mp4"))
            (work / "repository" / "streams.toml").write_text(toml)
            _record_streams(work, data, camera)
            _record_answers(work, data)
            recording.pack(work / "repository", data / "repository", urls)
        shutil.copytree(work / "captures", data / "captures")
        _record_commands(data)
        _record_interface(data)
        _build_wheel(demo, data)
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    print(f"{data}: {size / 1e6:.2f} MB")  # noqa: T201


def fovea(*arguments: object, code: int = 0) -> str:
    """Run the command; return its output."""
    ran = subprocess.run([FOVEA, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == code, (arguments, ran.stdout, ran.stderr)
    return ran.stdout


def write(path: Path, document: Any) -> None:
    """Write a document, with a line for each key of an object."""
    if not isinstance(document, dict):
        path.write_text(json.dumps(document, indent=1) + "\n")
        return
    lines = (f" {json.dumps(key)}: {json.dumps(each)}" for key, each in document.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _find_demo() -> Path:
    """Find the folder of demo models."""
    spec = find_spec("fovea_server")
    assert spec is not None
    for place in spec.submodule_search_locations or ():
        return Path(place) / "demo"
    raise AssertionError("there is no folder of demo models")


def _write_images(demo: Path, folder: Path) -> None:
    folder.mkdir()
    shrunk = {
        "scene-1": ("scene", 320, 240),
        "scene-2": ("other", 320, 240),
        "digit": ("digit", 128, 128),
    }
    for source, (name, width, height) in shrunk.items():
        image = cv2.imread(str(demo / f"{source}.jpg"))
        assert image is not None
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{name}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 85])
    for name in ("plate", "seven"):
        shutil.copyfile(demo / f"{name}.jpg", folder / f"{name}.jpg")


def _set_times(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (recording.TOUCHED, recording.TOUCHED))


def _round(source: Path, target: Path) -> Path:
    """Round the weights of convolutions to few levels."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype in (np.float16, np.float32) and array.ndim == 4:
            wide = array.astype(np.float16).astype(np.float64)
            spread = np.maximum(wide.std(axis=(1, 2, 3), keepdims=True), 1e-9)
            step = 2.0 ** np.round(np.log2(0.5 * spread))
            rounded = (np.round(wide / step) * step).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    onnx.save(model, target)
    return target


def _build(demo: Path, work: Path) -> None:
    """Build digits twice, a model of each other task and a pipeline, and add a plain model."""
    sources = work / "sources"
    sources.mkdir()
    build = ("build", "--repository", "repository")
    digits = _round(demo / "digits.onnx", sources / "digits.onnx")
    fovea(*build, digits, "--backend", "onnxruntime", "--images", "images")
    fovea(*build, digits, "--backend", "openvino", "--images", "images")
    for name in (*(f"digits-{task}" for task in TASKS), "plates-read"):
        source = _round(demo / f"{name}.onnx", sources / f"{name}.onnx")
        tokenizer = demo / f"{name}.json"
        words = ("--tokenizer", tokenizer) if tokenizer.is_file() else ()
        fovea(*build, source, "--backend", "onnxruntime", *words)
    repository = work / "repository"
    (repository / "digits" / "fovea.toml").write_text(CAPTURE)
    _write_adder(repository / "simple" / "1" / "model.onnx")
    (repository / "simple" / "config.pbtxt").write_text(SIMPLE)
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    (repository / "cards").mkdir()
    (repository / "cards" / "pipeline.toml").write_text(PIPELINE)
    fovea(*build, "--pipeline", "cards", "--images", "images")


def _write_adder(path: Path) -> None:
    """Write a model of two tensors."""
    path.parent.mkdir(parents=True)
    shape: list[str | int | None] = ["rows", 4]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("INPUT0", "INPUT1", "SUM", "DIFFERENCE")
    }
    inputs, outputs = [*values][:2], [*values][2:]
    nodes = [
        helper.make_node(kind, inputs, [name])
        for kind, name in zip(("Add", "Sub"), outputs, strict=True)
    ]
    graph = helper.make_graph(
        nodes, "simple", [values[each] for each in inputs], [values[each] for each in outputs]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def _promote() -> None:
    """Make a history. At its end version 1 is current, and version 2 is the newest."""
    fovea("promote", "digits", 1, "--why", "version 2 is tried later")
    fovea("promote", "digits", 2, "--why", "new runtime")
    fovea("rollback", "digits", "--why", "it is slower")


def _search_and_predict(work: Path, data: Path) -> None:
    """Index the images, and predict a folder. The tests add an image to it later."""
    fovea("index", "digits-embed", "images", "--thumbnails")
    few = work / "few"
    few.mkdir()
    for name in ("scene.jpg", "digit.jpg"):
        shutil.copyfile(work / "images" / name, few / name)
    _set_times(few)
    fovea("predict", "digits", "few", "--out", "predicted", "--format", "coco,csv", "--conf", "0.4")
    shutil.copytree(work / "predicted", data / "predicted")


def _record_keys(work: Path, data: Path) -> None:
    """Make keys; replace one, and remove one."""
    folder = data / "keys"
    folder.mkdir()
    file = work / "keys.json"
    plain = {
        name: fovea("key", "add", name, "--keys", file, *given).strip()
        for name, given in KEYS.items()
    }
    plain["leaked, before"] = plain["leaked"]
    plain["leaked"] = fovea("key", "rotate", "leaked", "--keys", file, "--grace", "0s").strip()
    fovea("key", "rm", "gone", "--keys", file)
    time.sleep(1.5)  # one key expires
    write(folder / "plain.json", plain)
    flags = ["--keys", str(file), "--model-control-mode=explicit"]
    flags += ["--load-model=digits", "--load-model=digits-classify"]
    scene = (work / "images" / "scene.jpg").read_bytes()
    with _serve(work / "repository", *flags) as server:
        metrics = f"http://127.0.0.1:{server.metrics_port}"
        permissions = http_requests.list_permissions(server.url, metrics, plain, scene)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for _ in range(3):
                answer = client.post(
                    "/v1/models/digits/predict",
                    content=scene,
                    headers={"x-api-key": plain["counted"]},
                )
                assert answer.status_code == 200, answer.text
            own = {
                name: client.get("/v1/keys/self", headers={"x-api-key": key}).json()
                for name, key in plain.items()
            }
    write(folder / "allowed.json", permissions)
    write(folder / "self.json", own)
    for path in work.glob("keys.json*"):
        shutil.copyfile(path, folder / path.name)


def _record_streams(work: Path, data: Path, camera: str) -> None:
    """Add streams as a client, wait for their events, and capture images."""
    flags = ("--allow-url", "--url-allow-private", "--url-allow-host=127.0.0.1")
    flags += ("--capture=captures", "--strict-readiness=false")
    with _serve(work / "repository", *flags) as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for name in ("scene.jpg", "other.jpg"):
                body = (work / "images" / name).read_bytes()
                answer = client.post("/v1/models/digits/predict", content=body)
                assert answer.status_code == 200, answer.text
            answer = client.post("/v1/streams", json={**PORCH, "source": camera})
            assert answer.status_code in (200, 201), answer.text
            off = {**PORCH, "id": "garden", "source": camera, "enabled": False}
            assert client.post("/v1/streams", json=off).status_code in (200, 201)
            events = work / "repository" / ".streams" / "porch"
            _until(lambda: _count_crossings(events) >= 2)
            _until(lambda: client.get("/v1/streams/recording").json()["state"] == "ended")
            seen = client.get("/v1/streams").text.replace(camera, recording.CAMERA)
            seen = seen.replace(str(data / "clip.mp4"), recording.CLIP)
            write(data / "streams.json", json.loads(seen))
        _until(lambda: len([*(work / "captures").rglob("predictions.json")]) == 2)


def _count_crossings(folder: Path) -> int:
    return sum(each.read_text().count('"crossed"') for each in folder.glob("*.jsonl"))


def _until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def _record_answers(work: Path, data: Path) -> None:
    """Record the responses to all requests and calls, and the interface of the server."""
    images = data / "images"
    copy = shutil.copytree(work / "repository", work / "copy")
    flags = (*recording.FLAGS, "--capture", str(work / "kept"))
    with _serve(copy, *flags) as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            requests = http_requests.list_requests(images)
            answers = {each.name: http_requests.send(client, each) for each in requests}
            document = client.get("/openapi.json").content
        write(data / "answers.json", answers)
        (data / "openapi.json.xz").write_bytes(lzma.compress(document))
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            calls = grpc_calls.list_calls(images).items()
            write(data / "grpc.json", {name: grpc_calls.send(client, call) for name, call in calls})
        command = [sys.executable, client_calls.__file__, server.url, str(images)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        write(data / "client.json", json.loads(run.stdout)["results"])
        write(data / "metrics.json", interface.metrics_table(server.metrics()))
    write(data / "log.json", interface.log_table(server.log.read_text()))


def _record_commands(data: Path) -> None:
    """Record the output of commands about the repository, the captures and the keys."""
    inspected = {}
    for model in http_requests.MODELS:
        ran = subprocess.run(
            [FOVEA, "inspect", model, "--json"], capture_output=True, text=True, check=False
        )
        out = json.loads(ran.stdout) if ran.returncode == 0 else None
        inspected[model] = {"code": ran.returncode, "told": out}
    write(data / "inspected.json", inspected)
    for name, command in {
        "versions": ("versions", "digits"),
        "history": ("history", "digits"),
        "captured": ("capture", "ls", "captures"),
        "listed keys": ("key", "ls", "--keys", "keys.json"),
    }.items():
        write(data / f"{name.replace(' ', '-')}.json", json.loads(fovea(*command, "--json")))
    exported = {}
    for kind in ("coco", "yolo", "label-studio", "cvat"):
        out = Path("exported") / kind
        fovea("capture", "export", "captures", "--format", kind, "--out", out, "--model", "digits")
        exported[kind] = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.*"))
    write(data / "exported.json", exported)


def _record_interface(data: Path) -> None:
    """Record the help and the errors."""
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    texts = interface.read_helps(fovea)
    write(data / "help.json", texts)
    write(data / "errors.json", interface.error_table())


def _build_wheel(demo: Path, data: Path) -> None:
    """Build the client's wheel, and write the version and the time."""
    root = demo.parents[2]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(data)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(recording.TOUCHED)}
    subprocess.run(command, cwd=root / "client", check=True, capture_output=True, env=environment)
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    about = {
        "commit": commit,
        "version": fovea("--version").strip(),
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write(data / "about.json", about)


@contextmanager
def _serve(repository: Path, *flags: str) -> Iterator[RunningServer]:
    server = start_server(repository, Path.cwd(), flags, program=[FOVEA])
    yield server
    assert server.stop() == 0, server.log.read_text()


if __name__ == "__main__":
    main()
