"""Requests/s of `simple` (two int32[16] added and subtracted) over v2, HTTP with binary and gRPC.

    python benchmarks/triton.py [--models DIR] [--rounds 3] [--seconds 3] [--json FILE]

HTTP is loaded by the generator of `fovea bench`, and each figure is a ratio to the mean of the bare
ASGI answer (`bare_asgi.py`) measured right before and after it, so that a noisy machine cancels
out. gRPC, and HTTP once more, are loaded by NVIDIA's perf_analyzer (`make .venv/clients`).
Generators share the machine; the cores that they and the server took are stated, and the server's
CPU a request.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
from http_load import Loaded, http_load
from tables import ratio

from fovea_engines.device import processor_name

HERE = Path(__file__).parent
CLIENTS = Path(sys.prefix) / "clients"
PERF_ANALYZER = CLIENTS / "bin" / "perf_analyzer"


@dataclass(frozen=True)
class Served(Loaded):
    """A burst, and what the server spent on it: cores, and us of CPU a request."""

    server_cpu: float
    server_us: float


def binary_request() -> bytes:
    """An infer request, head and body, as it goes over the wire."""
    inputs = [
        {
            "name": f"INPUT{n}",
            "shape": [1, 16],
            "datatype": "INT32",
            "parameters": {"binary_data_size": 64},
        }
        for n in range(2)
    ]
    outputs = [{"name": f"OUTPUT{n}", "parameters": {"binary_data": True}} for n in range(2)]
    head = orjson.dumps({"inputs": inputs, "outputs": outputs})
    lines = (
        "POST /v2/models/simple/infer HTTP/1.1",
        "Host: localhost",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + 128}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + bytes(128)


@contextmanager
def stopping(server: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    """The process of a server, which is ended afterwards."""
    try:
        yield psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def start_bare() -> tuple[subprocess.Popen[bytes], int]:
    """Start the bare ASGI answer; it and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, str(HERE / "bare_asgi.py"), str(number)]
        return subprocess.Popen(command, pass_fds=[number]), listener.getsockname()[1]


def start_fovea(models: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start `fovea serve` with `simple`; it and its ports for HTTP and gRPC."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    http_port, grpc_port = (probe.getsockname()[1] for probe in probes)
    for probe in probes:
        probe.close()
    flags = ["--model-control-mode=explicit", "--load-model=simple", "--allow-metrics=false"]
    ports = [f"--http-port={http_port}", f"--grpc-port={grpc_port}", "--log-level=warning"]
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", str(models)]
    server = subprocess.Popen([*command, *flags, *ports])
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{http_port}/v2/health/ready").status_code == 200:
                return server, http_port, grpc_port
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit("the server was not ready within 60 s")


def measured(server: psutil.Process, load: Callable[[], Loaded]) -> Served:
    """A burst, with what the server spent on it."""
    before, started = sum(server.cpu_times()[:2]), time.perf_counter()
    burst = load()
    used, wall = sum(server.cpu_times()[:2]) - before, time.perf_counter() - started
    # Both of the whole run: the windows that the rate is of are only a part of it.
    server_us = 1e6 * used / burst.requests
    return Served(**asdict(burst), server_cpu=used / wall, server_us=server_us)


def answered(http_port: int) -> int:
    """Requests that the server says it has answered."""
    told = httpx.get(f"http://127.0.0.1:{http_port}/v2/models/simple/stats").json()
    return int(told["model_stats"][0]["inference_stats"]["success"]["count"])


def perf_analyzer(protocol: str, http_port: int, port: int, clients: int, seconds: float) -> Loaded:
    """Load from perf_analyzer: three windows, `seconds` together."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        command = [str(PERF_ANALYZER), "-m", "simple", "-i", protocol, "-f", str(table), "-a"]
        command += ["-u", f"127.0.0.1:{port}", "--concurrency-range", str(clients)]
        command += ["-p", str(int(1e3 * seconds / 3)), "-r", "3", "-s", "999"]
        libraries = {"LD_LIBRARY_PATH": str(CLIENTS / "nvidia/cuda_runtime/lib")}
        count_before = answered(http_port)
        before, started = _children_cpu(), time.perf_counter()
        subprocess.run(
            command, cwd=folder, env=os.environ | libraries, check=True, stdout=subprocess.DEVNULL
        )
        cores = (_children_cpu() - before) / (time.perf_counter() - started)
        with table.open() as stream:
            [row] = csv.DictReader(stream)
    return Loaded(
        requests=answered(http_port) - count_before,
        rate=float(row["Inferences/Second"]),
        p50_ms=float(row["p50 latency"]) / 1e3,
        p99_ms=float(row["p99 latency"]) / 1e3,
        generator_cpu=cores,
    )


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(arguments: argparse.Namespace) -> dict[str, dict[int, list[Served]]]:
    """Kind of load -> clients -> bursts; "bare" is measured before and after each of "HTTP"."""
    bursts: dict[str, dict[int, list[Served]]] = {}
    seconds = arguments.seconds

    def note(kind: str, clients: int, server: psutil.Process, load: Callable[[], Loaded]) -> None:
        bursts.setdefault(kind, {}).setdefault(clients, []).append(measured(server, load))

    request = binary_request()
    (bare, bare_port), (fovea, http_port, grpc_port) = start_bare(), start_fovea(arguments.models)
    with stopping(bare) as baseline, stopping(fovea) as server:
        for clients in arguments.clients * arguments.rounds:
            bare_load = partial(http_load, bare_port, [request], clients, seconds)
            note("bare", clients, baseline, bare_load)
            note(
                "HTTP", clients, server, partial(http_load, http_port, [request], clients, seconds)
            )
            note("bare", clients, baseline, bare_load)
            if not PERF_ANALYZER.exists():
                continue
            for protocol, port in (("http", http_port), ("grpc", grpc_port)):
                load = partial(perf_analyzer, protocol, http_port, port, clients, seconds)
                note(f"perf_analyzer {protocol}", clients, server, load)
    return bursts


def summary(bursts: dict[str, dict[int, list[Served]]]) -> list[dict[str, object]]:
    """A row for each kind and number of clients: medians over the rounds."""
    rows = []
    for kind, by_clients in bursts.items():
        for clients, measured_bursts in by_clients.items():
            row: dict[str, object] = {"load": kind, "clients": clients}
            for name in asdict(measured_bursts[0]):
                median = statistics.median(getattr(burst, name) for burst in measured_bursts)
                row[name] = round(median, 3)
            row["rates"] = [round(burst.rate, 1) for burst in measured_bursts]
            if kind == "HTTP":
                bare = [burst.rate for burst in bursts["bare"][clients]]
                pairs = zip(bare[::2], bare[1::2], strict=True)
                limits = [statistics.mean(pair) for pair in pairs]
                both = zip(measured_bursts, limits, strict=True)
                row["ratios"] = [round(burst.rate / limit, 3) for burst, limit in both]
            rows.append(row)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("../shared/data/triton/models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one burst")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    if not PERF_ANALYZER.exists():
        print(f"without perf_analyzer ({PERF_ANALYZER}) gRPC is not measured")
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "rows": summary(measure(arguments)),
    }
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def show(report: dict[str, Any]) -> None:
    """The figures as a table."""
    print(f"\n{report['machine']}; {report['date']}; CPU in cores, that of the server in us too")
    print(
        "load                clients  requests/s   p50 ms   p99 ms  generator  server  us/request"
    )
    for row in report["rows"]:
        print(
            f"{row['load']:<19} {row['clients']:>7}  {row['rate']:10,.0f}  {row['p50_ms']:7.2f}"
            f"  {row['p99_ms']:7.2f}  {row['generator_cpu']:9.2f}  {row['server_cpu']:6.2f}"
            f"  {row['server_us']:10.0f}"
        )
    for row in report["rows"]:
        if "ratios" in row:
            print(f"HTTP, {row['clients']} clients: {ratio(row['ratios'])} of bare")


if __name__ == "__main__":
    main()
