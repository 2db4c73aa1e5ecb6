"""Measures which part of the server costs how much CPU: an image without a network and sockets.

    python benchmarks/parts.py [--requests 1000]

The network computes nothing (`overhead.py`), and a connection hands its bytes over in process, one
request at a time. A part's share is what a request costs less while the part returns its first
result again. A twentieth of the requests were cheaper than the figures: other programs on the
machine slow the rest down. Parts share caches, so that together they come to more than the whole.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import uvloop
from overhead import MODEL, image, network, request_for
from uvicorn import Config
from uvicorn.server import ServerState

from fovea_engines.backends.cpu import CpuSession
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.dense import Dense
from fovea_engines.results.detections import Detections
from fovea_preprocess.preprocessor import Preprocessor
from fovea_server.app import App, build_app
from fovea_server.http.application import create_application
from fovea_server.http.connection import Bounds, Connection
from fovea_server.http.v1 import answers
from fovea_server.observability.model_statistics import ModelStatistics, Stages
from fovea_server.scheduling import job
from fovea_server.scheduling.batching import InlineExecution
from fovea_server.settings import Settings
from fovea_server.traffic.call import Call

PARTS: dict[str, list[tuple[object, str]]] = {
    "decode the JPEG, 64x64": [(job, "decode_image")],
    "letterbox": [(Preprocessor, "__call__")],
    "call ONNX Runtime": [(CpuSession, "infer")],
    "decode the head, NMS": [(Dense, "decode")],
    "boxes in pixels of the image": [(Detections, "to_source")],
    "write the JSON": [(answers, "image_json"), (answers, "prediction_json")],
    "counters, access log": [
        (Stages, "observe"),
        (ModelStatistics, "count_success"),
        (ModelStatistics, "count_execution"),
        (Call, "end"),
    ],
}
REST = "the rest: HTTP, routing, scheduling"


class Wire(asyncio.Transport):
    """A transport without a socket; `answered` is done at the next answer."""

    answered: asyncio.Future[bytes]
    _written = b""

    def write(self, data: Any) -> None:
        """Give an answer out."""
        self._written += data
        head, _, body = self._written.partition(b"\r\n\r\n")
        if body and len(body) == int(head.lower().partition(b"content-length: ")[2].split()[0]):
            self.answered.set_result(self._written)
            self._written = b""

    def is_closing(self) -> bool:
        """Say that it is open."""
        return False


def first_result(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls once, and returns that result ever after."""
    found: list[Any] = []

    def again(*given: Any, **options: Any) -> Any:
        if not found:
            found.append(call(*given, **options))
        return found[0]

    return again


@contextmanager
def without(parts: list[tuple[object, str]]) -> Iterator[None]:
    """Let parts return their first result."""
    with mock.patch.object(InlineExecution, "takes", return_value=True):
        if not parts:
            yield
            return
        (owner, name), *others = parts
        with mock.patch.object(owner, name, first_result(getattr(owner, name))), without(others):
            yield


async def cpu_us(app: App, request: bytes, count: int) -> float:
    """Measure the CPU time of a request, microseconds."""
    config = Config(create_application(app), lifespan="off", log_config=None)
    bounds = Bounds(most=16, patience_s=60, budget=app.service.budget)
    protocol = Connection(config, ServerState(), {}, traffic=app.service.traffic, bounds=bounds)
    wire, spent = Wire({"peername": ("bench", 0)}), []
    protocol.connection_made(wire)
    for _ in range(count):
        wire.answered = asyncio.get_running_loop().create_future()
        began = time.thread_time_ns()
        protocol.data_received(request)
        answer = await wire.answered
        spent.append(time.thread_time_ns() - began)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return float(np.percentile(spent, 5)) / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="for each part, four times")
    count: int = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        source, repository = Path(folder) / "nothing.onnx", Path(folder) / "models"
        onnx.save(network(), source)
        build(BuildPlan(source, MODEL, repository, "onnxruntime"))
        settings = Settings(model_repository=[repository])
        app = build_app(settings)
        registry = app.registry
        registry.start()
        while not registry.started:
            time.sleep(0.05)
        everything = [each for parts in PARTS.values() for each in parts]
        request = request_for("v1", image())
        found: dict[str, float] = {}
        # The least of several: the machine is not equally fast at all times.
        for _ in range(4):
            for name, parts in {"all": [], **PARTS, REST: everything}.items():
                with without(parts):
                    us = uvloop.run(cpu_us(app, request, count))
                found[name] = min(us, found.get(name, us))
        registry.close()
    whole, rest = found.pop("all"), found.pop(REST)
    print(f"| an image, {whole:.0f} us of CPU | us |\n|---|---|")
    for name, us in found.items():
        print(f"| {name} | {whole - us:.0f} |")
    print(f"| {REST} | {rest:.0f} |")


if __name__ == "__main__":
    main()
