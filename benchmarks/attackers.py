"""Attacks a server on every port, and measures how long another client waits meanwhile.

    python benchmarks/attackers.py [--minutes 10] [--only TEXT] [--json FILE]

The server has keys, and serves the demo's model. Each attack of attacks.py runs in three processes
with a key that may predict, while a bystander with another key asks, each tenth of a second: HTTP
for health and for an image, gRPC for health, the metrics, and a WebSocket for the answer to a
frame. A row has the longest wait for each, and the most memory and descriptors that the server had.
The first row is without an attack. The exit code is 1 if a bystander was refused or got no answer
within a minute, or the server has ended.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import grpc
import httpx
import psutil
from attacks import ATTACKS, Target, attack_by_name
from serve import free_ports
from tables import markdown
from tritonclient.grpc import service_pb2
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name

DEMO = Path(__file__).parents[1] / "server" / "fovea_server" / "demo"
MODEL = "digits"
ATTACKERS = 3
_PAUSE_S = 0.1
_PATIENCE_S = 60.0

Ask = Callable[[], object]
Way = Callable[[], AbstractContextManager[Ask]]


@dataclass
class Row:
    """The measurements of one attack: longest waits in seconds, and the server's peaks."""

    attack: str
    waits: dict[str, float] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    memory_mb: float = 0
    descriptors: int = 0
    faults: list[str] = field(default_factory=list)


class Bystander:
    """A client with a key of its own, that asks each port."""

    def __init__(self, target: Target, image: bytes) -> None:
        self._target, self._image = target, image
        self._headers = {"x-api-key": target.key}

    @contextmanager
    def _http(self) -> Iterator[Ask]:
        url = f"http://127.0.0.1:{self._target.http}/v2/health/live"
        with httpx.Client(timeout=_PATIENCE_S) as client:
            yield lambda: client.get(url).raise_for_status()

    @contextmanager
    def _new_connection(self) -> Iterator[Ask]:
        def ask() -> None:
            with closing(HTTPConnection("127.0.0.1", self._target.http, _PATIENCE_S)) as made:
                made.request("GET", "/v2/health/live")
                if (answer := made.getresponse()).status != 200:
                    raise HTTPException(f"status {answer.status}")

        yield ask

    @contextmanager
    def _image_answer(self) -> Iterator[Ask]:
        url = f"http://127.0.0.1:{self._target.http}{self._target.predict}"
        with httpx.Client(timeout=_PATIENCE_S, headers=self._headers) as client:
            yield lambda: client.post(url, content=self._image).raise_for_status()

    @contextmanager
    def _grpc(self) -> Iterator[Ask]:
        with grpc.insecure_channel(f"127.0.0.1:{self._target.grpc}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            nothing = service_pb2.ServerLiveRequest().SerializeToString()
            yield lambda: call(nothing, timeout=_PATIENCE_S)

    @contextmanager
    def _metrics(self) -> Iterator[Ask]:
        url = f"http://127.0.0.1:{self._target.metrics}/metrics"
        with httpx.Client(timeout=_PATIENCE_S, headers=self._headers) as client:
            yield lambda: client.get(url).raise_for_status()

    @contextmanager
    def _websocket(self) -> Iterator[Ask]:
        url = f"ws://127.0.0.1:{self._target.http}/v1/models/{MODEL}/stream"
        with connect(url, additional_headers=self._headers, ping_interval=None) as line:
            line.recv()

            def ask() -> None:
                line.send(self._image)
                if "error" in (answer := json.loads(line.recv(_PATIENCE_S))):
                    raise HTTPException(answer["error"]["message"])

            yield ask

    @property
    def ways(self) -> dict[str, Way]:
        """Its kinds of request, by their names in the table."""
        return {
            "HTTP": self._http,
            "HTTP, new connection": self._new_connection,
            "image": self._image_answer,
            "gRPC": self._grpc,
            "metrics": self._metrics,
            "WebSocket": self._websocket,
        }


def watch(row: Row, name: str, way: Way, over: threading.Event) -> None:
    """Ask until it is over; the longest wait, and the faults, go into the row."""
    row.waits[name], row.asked[name] = 0.0, 0
    while not over.is_set():
        try:
            with way() as ask:
                while not over.is_set():
                    began = time.monotonic()
                    try:
                        ask()
                    finally:
                        row.waits[name] = max(row.waits[name], time.monotonic() - began)
                    row.asked[name] += 1
                    over.wait(_PAUSE_S)
        except (
            httpx.HTTPError,
            HTTPException,
            grpc.RpcError,
            WebSocketException,
            OSError,
        ) as error:
            row.faults.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            over.wait(1)


def run(attack: str, attacker: Target, bystander: Bystander, server: int, seconds: float) -> Row:
    """Attack for some seconds; the first row of a table has no attack."""
    row, over, process = Row(attack), threading.Event(), psutil.Process(server)
    watches = [
        threading.Thread(target=watch, args=(row, name, way, over))
        for name, way in bystander.ways.items()
    ]
    attackers = [
        multiprocessing.get_context("spawn").Process(target=attack_by_name, args=(attack, attacker))
        for _ in range(ATTACKERS if attack in ATTACKS else 0)
    ]
    for each in (*watches, *attackers):
        each.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.is_running():
        row.memory_mb = max(row.memory_mb, process.memory_info().rss / 1e6)
        row.descriptors = max(row.descriptors, process.num_fds())
        time.sleep(0.1)
    for each in attackers:
        each.kill()
    over.set()
    for each in (*watches, *attackers):
        each.join()
    return row


@contextmanager
def serving(folder: Path) -> Iterator[tuple[psutil.Process, Target, Target]]:
    """Serve the demo's model with keys; the server, and what attackers and bystanders know."""
    build(BuildPlan(source=DEMO / "digits.onnx", name=MODEL, repository=folder / "models"))
    fovea, keys = [sys.executable, "-m", "fovea_server.cli.main"], folder / "keys.json"
    made = [
        subprocess.check_output(
            [*fovea, "key", "add", name, "--keys", str(keys), "--scope", "predict,metrics"],
            text=True,
        ).strip()
        for name in ("attacker", "bystander")
    ]
    ports = free_ports(3)
    names = ("--http-port", "--grpc-port", "--metrics-port")
    flags = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
    command = [*fovea, "serve", str(folder / "models"), *flags, f"--keys={keys}"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stderr=log)
    targets = [Target(*ports, key, MODEL) for key in made]
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                url = f"http://127.0.0.1:{ports[0]}/v2/health/ready"
                if httpx.get(url).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        else:
            raise SystemExit((folder / "log").read_text())
        yield psutil.Process(server.pid), targets[0], targets[1]
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(120)
        finally:
            server.kill()
        if "Traceback" in (log_text := (folder / "log").read_text()):
            raise SystemExit(log_text[log_text.index("Traceback") - 500 :][:5000])


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    ways = list(rows[0].waits)
    head = ("attack", *(f"{way} s" for way in ways), "MB", "descriptors", "faults")
    return markdown(
        head,
        (
            (
                row.attack,
                *(f"{row.waits[way]:.2f}" for way in ways),
                *(f"{row.memory_mb:.0f}", str(row.descriptors), str(len(row.faults))),
            )
            for row in rows
        ),
    )


def main() -> int:
    """Run all attacks, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", default="", help="run attacks whose name has this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    attacks = ["none", *(name for name in ATTACKS if given.only in name)]
    seconds = 60 * given.minutes / len(attacks)
    image, rows = (DEMO / "scene-1.jpg").read_bytes(), list[Row]()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (server, bad, good):
        for attack in attacks:
            rows.append(run(attack, bad, Bystander(good, image), server.pid, seconds))
            print(rows[-1], flush=True)
    print(table(rows))
    if given.json is not None:
        about = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "seconds": seconds,
            "attackers": ATTACKERS,
        }
        given.json.write_text(json.dumps({**about, "rows": list(map(asdict, rows))}, indent=1))
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())
