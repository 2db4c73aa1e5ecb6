"""A pipeline beside the same chain by hand, and beside a client that calls two models.

    python benchmarks/pipelines.py [--shared ../shared] [--rounds 9] [--seconds 2] [--json FILE]

The chain is yolov8n and vehicle-attributes on frames with cars, and for the calls of a client also
the demo's small networks on digits, where the detector takes less of the time. By hand it is a loop
over ONNX Runtime in this process, without HTTP, in as many threads as the server has clients.
Rounds of each way take turns, as other work on the machine comes and goes; ratios are the medians
of rounds. `cpu ratio` is that of the server's processor time for an image, which tells more where
others use the cores, too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines import reference  # noqa: E402
from tests.server.pipelines import by_hand  # noqa: E402
from tests.server.pipelines.conftest import write_pipeline  # noqa: E402
from tests.serving import start_server  # noqa: E402

from fovea_engines.build.build import build  # noqa: E402
from fovea_engines.build.plan import BuildPlan  # noqa: E402
from fovea_engines.device import processor_name, usable_cores  # noqa: E402

CLIENTS = (1, 4, 16)
FRAMES = (195, 205, 225, 230)
PIPELINE = '[[stages]]\nmodel = "{}"\n[[stages]]\nmodel = "{}"\n'
DEMO = ROOT / "server" / "fovea_server" / "demo"
Ask = Callable[[bytes], object]


def post(host: str, model: str, **headers: str) -> Ask:
    """Return the call that sends a body on a connection of its own, which stays open."""
    connection = http.client.HTTPConnection(host, timeout=300)

    def ask(body: bytes) -> dict[str, object]:
        connection.request("POST", f"/v1/models/{model}/predict", body, headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)

    return ask


def two_calls(host: str, detector: str, other: str) -> Ask:
    """Return the calls of a client that cuts the objects out itself, and sends all in a form."""
    form = {"content-type": "multipart/form-data; boundary=crop"}
    first, second = post(host, detector), post(host, other, **form)
    head = b'--crop\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'

    def ask(image: bytes) -> None:
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
        boxes = [found["box"].values() for found in first(image)["images"][0]["detections"]]
        crops = [cv2.imencode(".jpg", by_hand.cut(pixels, [*box]))[1].tobytes() for box in boxes]
        if crops:
            second(b"".join(head + crop + b"\r\n" for crop in crops) + b"--crop--\r\n")

    return ask


def make_loop(detector: Path, vehicle: Path, threads: int) -> Ask:
    """Return the loop."""
    opened = by_hand.session(detector, threads)

    def ask(image: bytes) -> None:
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
        for found in reference.detect(opened, "yolov8", pixels):
            by_hand.vehicle(vehicle, by_hand.cut(pixels, found["box"]))

    return ask


def rate(asks: list[Ask], images: list[bytes], seconds: float) -> tuple[float, float]:
    """Return images a second of all together, and the median of their milliseconds."""
    until = time.monotonic() + seconds

    def work(number: int, ask: Ask) -> list[float]:
        times = []
        while time.monotonic() < until:
            began = time.monotonic()
            ask(images[(number + len(times)) % len(images)])
            times.append(1e3 * (time.monotonic() - began))
        return times

    began = time.monotonic()
    with ThreadPoolExecutor(len(asks)) as pool:
        times = [t for each in pool.map(work, range(len(asks)), asks) for t in each]
    return len(times) / (time.monotonic() - began), statistics.median(times)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    models = given.shared / "models"
    detector = models / "yolov8n.onnx"
    vehicle = models / "chains" / "vehicle-attributes-recognition-barrier-0039.onnx"
    video = cv2.VideoCapture(str(given.shared / "data" / "video" / "car-detection.mp4"))
    frames = [video.read()[1] for _ in range(max(FRAMES) + 1)]
    cars = [cv2.imencode(".jpg", frames[at])[1].tobytes() for at in FRAMES]
    digits = [(DEMO / f"scene-{n}.jpg").read_bytes() for n in (1, 2)]
    empty = [cv2.imencode(".jpg", frames[0] * 0 + 127)[1].tobytes()]
    figures: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        build(BuildPlan(detector, "yolov8n", repository, "onnxruntime"))
        build(BuildPlan(vehicle, "vehicle", repository, "onnxruntime"))
        build(BuildPlan(DEMO / "digits.onnx", "digits", repository, "onnxruntime"))
        build(BuildPlan(DEMO / "digits-classify.onnx", "classes", repository, "onnxruntime"))
        write_pipeline(repository, "traffic", PIPELINE.format("yolov8n", "vehicle"))
        write_pipeline(repository, "plates", PIPELINE.format("digits", "classes"))
        server = start_server(repository, Path(folder))
        host = f"127.0.0.1:{server.port}"
        served = psutil.Process(server.process.pid)
        hand = partial(make_loop, detector, vehicle)
        for clients in CLIENTS:
            ways = {
                "pipeline": [post(host, "traffic") for _ in range(clients)],
                "loop": [hand(usable_cores() if clients == 1 else 1)] * clients,
            }
            figures[f"{clients} clients"] = compared(ways, cars, given)
        called = ("traffic", cars, "yolov8n", "vehicle"), ("plates", digits, "digits", "classes")
        for name, images, *pair in called:
            ways = {"pipeline": [post(host, name)], "two calls": [two_calls(host, *pair)]}
            figures[f"two calls, {pair[0]}"] = compared(ways, images, given, served)
            ways = {"pipeline": [post(host, name)], "detector": [post(host, pair[0])]}
            figures[f"detector alone, {pair[0]}"] = compared(ways, images, given, served)
        ways = {"pipeline": [post(host, "traffic")], "detector": [post(host, "yolov8n")]}
        figures["no objects"] = compared(ways, empty, given, served)
        server.stop()
    for name, row in figures.items():
        print(name, *(f"{key} {value:.3f}" for key, value in row.items()), sep="  ")
    if given.json is not None:
        about = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": {"cpu": processor_name(), "cores": usable_cores()},
            "python": platform.python_version(),
        }
        given.json.write_text(json.dumps(about | {"figures": figures}, indent=1) + "\n")


def compared(
    ways: dict[str, list[Ask]],
    images: list[bytes],
    given: argparse.Namespace,
    served: psutil.Process | None = None,
) -> dict[str, float]:
    """Measure two ways in turn; return their medians, and those of the ratios of each round."""
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for asks in ways.values():
        rate(asks, images, given.seconds / 2)
    for number in range(given.rounds):
        for name in [*ways][:: 1 if number % 2 else -1]:
            before, began = cpu_s(served), time.monotonic()
            rounds[name].append(rate(ways[name], images, given.seconds))
            asked = rounds[name][-1][0] * (time.monotonic() - began)
            cpu[name].append(1e3 * (cpu_s(served) - before) / asked)
    one, other = rounds.values()
    row = {f"{name} images/s": statistics.median(r for r, _ in rounds[name]) for name in ways}
    row |= {f"{name} p50 ms": statistics.median(ms for _, ms in rounds[name]) for name in ways}
    pairs = list(zip(one, other, strict=True))
    row["throughput ratio"] = statistics.median(a[0] / b[0] for a, b in pairs)
    row["p50 ratio"] = statistics.median(b[1] / a[1] for a, b in pairs)
    if served is not None:
        row |= {f"{name} cpu ms": statistics.median(cpu[name]) for name in ways}
        row["cpu ratio"] = statistics.median(b / a for a, b in zip(*cpu.values(), strict=True))
    return row


def cpu_s(process: psutil.Process | None) -> float:
    """Return the processor time of a process so far, seconds."""
    return 0.0 if process is None else sum(process.cpu_times()[:2])


if __name__ == "__main__":
    main()
