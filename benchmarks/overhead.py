"""Measures the cost of the server itself: images for a network that computes nothing.

    python benchmarks/overhead.py [--rounds 3] [--beside PYTHON] [--py-spy py-spy] [--json FILE]

The network takes 64 x 64 pixels and finds one box, which is in its weights. Every image is sent to
/v1 and as a bare body to v2, by a load generator on the same machine. Printed are images/s, the
server's CPU time for an image, and where it goes for the fewest clients of /v1: the stages as the
server times them, and the rest, which is HTTP and scheduling. With py-spy, also the time for which
an image of 16 clients of /v1 holds the GIL.

`--beside` names the Python of another version of Fovea. Every round asks both servers, each second
round in the other order, and the ratio is the CPU time of this one over that of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import onnx
import psutil
from http_load import http_load
from onnx import TensorProto, helper, numpy_helper
from serve import start_server
from tables import ratio

from fovea_engines.device import processor_name, usable_cores

MODEL, SIZE, CLASSES = "bench", 64, 3
STAGES = ("decode", "letterbox", "queue", "infer", "postprocess")
ADDRESSES = {
    "v1": (f"/v1/models/{MODEL}/predict", ""),
    "v2": (f"/v2/models/{MODEL}/infer", "Inference-Header-Content-Length: 0\r\n"),
}


def network() -> onnx.ModelProto:
    """A detector of YOLOv8's form whose output is a constant."""
    cells = sum((SIZE // stride) ** 2 for stride in (8, 16, 32))
    box = np.zeros((1, 4 + CLASSES, cells), np.float32)
    box[0, :4, 3] = SIZE / 2, SIZE / 2, 20, 20
    box[0, 5, 3] = 0.9
    constants = {
        "box": box,
        "zero": np.float32(0),
        "begin": np.zeros(4, np.int64),
        "end": np.ones(4, np.int64),
    }
    nodes = [
        helper.make_node("Slice", ["images", "begin", "end"], ["pixel"]),
        helper.make_node("ReduceMax", ["pixel"], ["value"], keepdims=0),
        helper.make_node("Mul", ["value", "zero"], ["nothing"]),
        helper.make_node("Add", ["box", "nothing"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "nothing",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, list(box.shape))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    names = {number: f"class {number}" for number in range(CLASSES)}
    helper.set_model_props(model, {"task": "detect", "names": str(names)})
    return model


def image(size: int = SIZE) -> bytes:
    """A JPEG of soft noise."""
    noise = np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)
    return bytes(cv2.imencode(".jpg", cv2.GaussianBlur(noise, (5, 5), 0))[1])


def request_for(address: str, body: bytes) -> bytes:
    """The bytes of a request."""
    path, header = ADDRESSES[address]
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(frozen=True)
class Round:
    """Images/s, and milliseconds of the server's CPU for an image."""

    rate: float
    cpu_ms: float


def measure(
    port: int, server: psutil.Process, request: bytes, clients: int, seconds: float
) -> Round:
    """One burst."""
    before = sum(server.cpu_times()[:2])
    burst = http_load(port, [request], clients, seconds)
    spent = sum(server.cpu_times()[:2]) - before
    return Round(burst.rate, 1e3 * spent / burst.requests)


def gil_ms(py_spy: str, pid: int, port: int, request: bytes, seconds: float) -> float:
    """Milliseconds for which an image holds the GIL, by samples of py-spy."""
    with tempfile.NamedTemporaryFile("r") as found:
        rate = 500
        command = [py_spy, "record", "--gil", "--nonblocking", "-f", "raw", "-o", found.name]
        options = ["-r", str(rate), "-d", str(int(seconds)), "-p", str(pid)]
        spy = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
        burst = http_load(port, [request], 16, seconds)
        if spy.wait():
            raise SystemExit(f"py-spy ended with {spy.returncode}")
        samples = sum(int(line.rsplit(" ", 1)[1]) for line in found.read().splitlines())
    return 1e3 * samples / rate / seconds / burst.rate


@contextmanager
def serving(python: str, backend: str, body: bytes) -> Iterator[tuple[int, int]]:
    """Build and serve the network with the Fovea of `python`; yields its process id and port."""
    with tempfile.TemporaryDirectory() as folder:
        source, repository = Path(folder) / "nothing.onnx", Path(folder) / "models"
        onnx.save(network(), source)
        command = [python, "-P", "-m", "fovea_server.cli.main", "build", str(source)]
        options = ["--name", MODEL, "--repository", str(repository), "--backend", backend]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        server, port, _ = start_server(repository, body, python=python)
        try:
            yield server.pid, port
        finally:
            server.terminate()
            server.wait(60)


def in_turn(
    servers: Sequence[tuple[int, int]], request: bytes, clients: int, seconds: float, rounds: int
) -> list[list[Round]]:
    """Bursts for each server, one a round; every second round begins with the last server."""
    found: list[list[Round]] = [[] for _ in servers]
    for number in range(rounds):
        order = list(zip(servers, found, strict=True))
        for (pid, port), own in order[:: -1 if number % 2 else 1]:
            own.append(measure(port, psutil.Process(pid), request, clients, seconds))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one burst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--beside", metavar="PYTHON", help="of another version, to compare with")
    parser.add_argument("--py-spy", help="the py-spy to measure the GIL with")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    body, loads = image(), dict[str, Any]()
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {usable_cores()} cores",
        "load": [round(one, 1) for one in os.getloadavg()],
        "backend": given.backend,
        "seconds": given.seconds,
        "loads": loads,
    }
    with ExitStack() as stack:
        pythons = [sys.executable, *([given.beside] if given.beside else [])]
        servers = [stack.enter_context(serving(each, given.backend, body)) for each in pythons]
        for clients in given.clients:
            for address in ADDRESSES:
                request = request_for(address, body)
                own, *others = in_turn(servers, request, clients, given.seconds, given.rounds)
                rate = statistics.median(one.rate for one in own)
                cpu = statistics.median(one.cpu_ms for one in own)
                line = f"{address}, {clients:>2} clients: {rate:6.0f} images/s, {cpu:.3f} ms CPU"
                for other in others:
                    pairs = zip(own, other, strict=True)
                    line += f", {ratio([one.cpu_ms / two.cpu_ms for one, two in pairs])}"
                print(line)
                loads[f"{address} {clients}"] = {
                    name: [
                        {"rate": round(one.rate), "cpu_ms": round(one.cpu_ms, 3)} for one in each
                    ]
                    for name, each in zip(("own", "other"), (own, *others), strict=False)
                }
        lone = [one["cpu_ms"] for one in loads[f"v1 {min(given.clients)}"]["own"]]
        (pid, port), *_ = servers
        show_stages(port, body, statistics.median(lone))
        if given.py_spy:
            report["gil_ms"] = gil_ms(given.py_spy, pid, port, request_for("v1", body), 5)
            print(f"GIL: {report['gil_ms']:.3f} ms an image")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def show_stages(port: int, body: bytes, cpu_ms: float) -> None:
    """Print where the time of an image goes."""
    spent: Counter[str] = Counter()
    count = 500
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(count):
            timing = client.post(ADDRESSES["v1"][0], content=body).json()["timing_ms"]
            spent.update({stage: timing[stage] / count for stage in STAGES})
    for stage in STAGES:
        print(f"  {stage:<12}{spent[stage]:.3f} ms")
    print(f"  {'the rest':<12}{cpu_ms - spent.total():.3f} ms: HTTP, scheduling, statistics")


if __name__ == "__main__":
    main()
