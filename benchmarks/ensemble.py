"""Image in, boxes out: Fovea, over a client's own loop, and over an ensemble of Triton.

    python benchmarks/ensemble.py [MODEL.onnx] [--triton DIR --packages PACKAGES] [--json FILE]

MODEL has the output of YOLOv8. Clients ask in turn, in each round:

- `fovea`: a JPEG file to /v1, boxes back
- `loop`: the client decodes, letterboxes and normalises, sends a tensor to the same server over v2,
  and suppresses what comes back, with OpenCV and numpy
- `ensemble`: a JPEG file to an ensemble of Triton, with the same code in Python steps before and
  after the network
- `triton-loop`: the client's own loop with Triton's network alone, as in triton#8776

The last two need DIR, with `bin/tritonserver` and `backends` as they lie in the package
nvidia-pytriton 0.7, unpacked. It has the Python backend alone, so there the network is a Python
step, too, which runs ONNX Runtime; the tensors that it passes are those of any backend. It reads no
arrays of NumPy 2: PACKAGES is a folder with NumPy 1, OpenCV and ONNX Runtime for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import local

import cv2
import httpx
import numpy as np
import tritonclient.http
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.evaluation.samples import sample_images
from fovea_engines.evaluation.speed import call_rate
from fovea_engines.progress import ConsoleProgress
from fovea_server.bench.server_process import ServerProcess

SIDE, CONF, IOU = 640, 0.25, 0.7
PORT = 18100
YOLOV8N = Path(__file__).resolve().parents[2] / "shared" / "models" / "yolov8n.onnx"
# The client runs this code, and so do the steps of Triton.
CODE = f"""
import cv2
import numpy as np


def prepared(file):
    image = cv2.imdecode(file, cv2.IMREAD_COLOR)
    height, width = image.shape[:2]
    ratio = min({SIDE} / height, {SIDE} / width)
    inner = round(width * ratio), round(height * ratio)
    x, y = ({SIDE} - inner[0]) / 2, ({SIDE} - inner[1]) / 2
    image = cv2.copyMakeBorder(
        cv2.resize(image, inner, interpolation=cv2.INTER_LINEAR),
        round(y - 0.1), round(y + 0.1), round(x - 0.1), round(x + 0.1),
        cv2.BORDER_CONSTANT, value=(114, 114, 114),
    )
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None], np.float32) / 255


def suppressed(output):
    rows = output[0].T
    ids = rows[:, 4:].argmax(axis=1)
    scores = rows[np.arange(len(rows)), 4 + ids]
    rows, ids, scores = (each[scores > {CONF}] for each in (rows, ids, scores))
    boxes = rows[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] / 2
    kept = cv2.dnn.NMSBoxesBatched(boxes, scores, ids, {CONF}, {IOU})
    return np.concatenate([boxes[kept], scores[kept, None], ids[kept, None]], axis=1)
"""
STEP = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {setup}

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = np.asarray({work}, np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
"""
STEPS = {
    "pre": ("pass", "prepared(x)", "TYPE_UINT8", [-1], [1, 3, SIDE, SIDE]),
    "network": (
        "import onnxruntime; self.session = onnxruntime.InferenceSession({model!r})",
        "self.session.run(None, {'images': x})[0]",
        *("TYPE_FP32", [1, 3, SIDE, SIDE], [1, -1, -1]),
    ),
    "post": ("pass", "suppressed(x)", "TYPE_FP32", [1, -1, -1], [-1, 6]),
}


def write_repository(folder: Path, model: Path, packages: Path) -> None:
    """The steps, and an ensemble of them."""
    for name, (setup, work, kind, takes, gives) in STEPS.items():
        (folder / name / "1").mkdir(parents=True)
        source = STEP.format(setup=setup.format(model=str(model)), work=work)
        path = f"import sys\nsys.path.insert(0, {str(packages)!r})\n"
        (folder / name / "1" / "model.py").write_text(path + CODE + source)
        count = 1 if name == "network" else usable_cores()
        (folder / name / "config.pbtxt").write_text(
            f'backend: "python" instance_group [{{ kind: KIND_CPU count: {count} }}]\n'
            f'input [{{ name: "x" data_type: {kind} dims: {takes} }}]\n'
            f'output [{{ name: "y" data_type: TYPE_FP32 dims: {gives} }}]\n'
        )
    tensors = ("x", "prepared", "computed", "y")
    steps = ", ".join(
        f'{{ model_name: "{name}" model_version: -1 input_map {{ key: "x" value: "{a}" }} '
        f'output_map {{ key: "y" value: "{b}" }} }}'
        for name, a, b in zip(STEPS, tensors, tensors[1:], strict=False)
    )
    (folder / "ensemble" / "1").mkdir(parents=True)
    (folder / "ensemble" / "config.pbtxt").write_text(
        'platform: "ensemble" input [{ name: "x" data_type: TYPE_UINT8 dims: [-1] }]\n'
        'output [{ name: "y" data_type: TYPE_FP32 dims: [-1, 6] }]\n'
        f"ensemble_scheduling {{ step [{steps}] }}\n"
    )


@contextmanager
def triton(program: Path, repository: Path, folder: Path) -> Iterator[str]:
    """Serve a repository with Triton: its address."""
    shutil.copytree(program / "backends" / "python", folder / "python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = shutil.copy(next(program.glob(f"**/{version}/*backend_stub")), folder / "python")
    Path(stub).chmod(0o755)
    libraries = program.parents[1] / "nvidia_pytriton.libs"
    command = [str(program / "bin" / "tritonserver"), "--model-repository", str(repository)]
    command += ["--backend-directory", str(folder), "--http-port", str(PORT)]
    command += ["--allow-grpc", "false", "--allow-metrics", "false"]
    more = {"LD_LIBRARY_PATH": str(libraries)}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **more}, stdout=log, stderr=log)
    try:
        for _ in range(120):
            try:
                if httpx.get(f"http://127.0.0.1:{PORT}/v2/health/ready").is_success:
                    break
            except httpx.TransportError:
                pass
            if server.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(1)
        yield f"127.0.0.1:{PORT}"
    finally:
        server.terminate()
        server.wait(60)


def own_loop(address: str, model: str, takes: str, gives: str) -> Callable[[bytes], int]:
    """A client that pre- and postprocesses itself; it returns how many objects it found."""
    code: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    exec(CODE, code)
    tensor = tensors(address, model, takes, gives, "FP32")
    return lambda file: len(
        code["suppressed"](tensor(code["prepared"](np.frombuffer(file, np.uint8))))
    )


def tensors(
    address: str, model: str, takes: str, gives: str, kind: str
) -> Callable[[np.ndarray], np.ndarray]:
    """A client of v2 that sends and takes tensors in binary; a connection for each thread."""
    own = local()

    def ask(row: np.ndarray) -> np.ndarray:
        if not hasattr(own, "client"):
            own.client = InferenceServerClient(address, network_timeout=60)
        given = InferInput(takes, row.shape, kind)
        given.set_data_from_numpy(row)
        asked = [InferRequestedOutput(gives)]
        answer: tritonclient.http.InferResult = own.client.infer(model, [given], outputs=asked)
        return answer.as_numpy(gives)

    return ask


def pictures() -> list[bytes]:
    """JPEG files of two photographs of 1280 x 720 pixels."""
    resized = [cv2.resize(pixels, (1280, 720)) for _, pixels in sample_images(None, 2)]
    return [cv2.imencode(".jpg", pixels[..., ::-1])[1].tobytes() for pixels in resized]


def measure(
    ways: dict[str, Callable[[bytes], int]], rounds: int, seconds: float
) -> list[dict[str, object]]:
    """A row for each number of clients."""
    files = pictures()
    for name, way in ways.items():
        print(f"{name} finds {[way(file) for file in files]} objects", flush=True)
    rows: list[dict[str, object]] = []
    for clients in (1, 4):
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for each in range(rounds + 1):
            for name, way in ways.items():
                asked = partial(lambda number, way: way(files[number % len(files)]), way=way)
                rate = call_rate(asked, callers=clients, seconds=seconds)
                if each:  # the first is a warm-up
                    rates[name].append(round(rate, 2))
        row: dict[str, object] = {"clients": clients, "rates": rates}
        for name in [name for name in ways if name != "fovea"]:
            pairs = zip(rates["fovea"], rates[name], strict=True)
            ratios = [one / other for one, other in pairs]
            numbers = (statistics.median(ratios), min(ratios), max(ratios))
            row[f"fovea over {name}"] = [round(number, 2) for number in numbers]
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Serve the model in all ways, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=YOLOV8N)
    parser.add_argument("--triton", type=Path, help="folder of tritonserver and its backends")
    parser.add_argument("--packages", type=Path, help="folder of NumPy 1 and more, for its steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cv2.setNumThreads(1)  # clients share the cores among themselves
    name = options.model.stem
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = BuildPlan(options.model, name, folder / "fovea", "onnxruntime")
        card = build(plan, ConsoleProgress())
        server = stack.enter_context(ServerProcess(folder / "fovea", name))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))

        def ask(file: bytes) -> int:
            answer = client.post(f"/v1/models/{name}/predict", content=file).raise_for_status()
            return len(answer.json()["images"][0]["detections"])

        address = server.url.partition("//")[2]
        ends = card.inputs[0].name, card.outputs[0].name
        ways = {"fovea": ask, "loop": own_loop(address, name, *ends)}
        if options.triton is not None:
            write_repository(folder / "triton", options.model.resolve(), options.packages.resolve())
            (folder / "backends").mkdir()
            other = stack.enter_context(
                triton(options.triton, folder / "triton", folder / "backends")
            )
            image = tensors(other, "ensemble", "x", "y", "UINT8")
            ways["ensemble"] = lambda file: len(image(np.frombuffer(file, np.uint8)))
            ways["triton-loop"] = own_loop(other, "network", "x", "y")
        rows = measure(ways, options.rounds, options.seconds)
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{processor_name()}, {usable_cores()} cores",
        "model": name,
        "rows": rows,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
