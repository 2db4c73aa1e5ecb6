"""Compares one `fovea serve` with two behind HAProxy: images for a network that computes nothing.

    python benchmarks/processes.py [--clients 16] [--seconds 5] [--rounds 5] [--jpeg FILE]

The two share the cores of this machine, `--threads` each, and HAProxy has the configuration of
docker/proxies. They take turns with the one. Printed are images/s and the CPU for an image of all
processes that serve it, and the ratios of two to one, taken inside each round. The load generator
has the same cores, so the rates say little on a machine with few.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import onnx
import psutil
from http_load import http_load
from overhead import MODEL, Round, image, network, request_for
from serve import free_ports, start_server

from fovea_engines.device import usable_cores

CONFIGURATION = Path(__file__).resolve().parents[1] / "docker" / "proxies" / "haproxy.cfg"


def start(repository: Path, threads: int, body: bytes, stack: ExitStack) -> tuple[int, int]:
    """Start a server; return its process id and its port."""
    settings = {"FOVEA_THREADS": str(threads), "FOVEA_LOG_LEVEL": "warning"}
    server, port, _ = start_server(repository, body, settings)
    stack.callback(server.wait, 60)
    stack.callback(server.terminate)
    return server.pid, port


def start_haproxy(ports: Sequence[int], folder: Path, stack: ExitStack) -> tuple[int, int]:
    """Start HAProxy before two servers; return its process id and its port."""
    [port] = free_ports(1)
    # The part for gRPC is left out.
    text = CONFIGURATION.read_text().replace("bind :80\n", f"bind 127.0.0.1:{port}\n")
    http, _, rest = text.partition("frontend grpc")
    http += "backend fovea_http" + rest.partition("backend fovea_http")[2]
    http = http.partition("backend fovea_grpc")[0]
    for host, server in zip(("10.0.0.11", "10.0.0.12"), ports, strict=True):
        http = http.replace(f"{host}:8000", f"127.0.0.1:{server}")
    file = folder / "haproxy.cfg"
    file.write_text(http)
    proxy = subprocess.Popen(["haproxy", "-db", "-f", str(file)], stderr=subprocess.DEVNULL)
    stack.callback(proxy.wait, 60)
    stack.callback(proxy.terminate)
    return proxy.pid, port


def measure(pids: Sequence[int], port: int, request: bytes, clients: int, seconds: float) -> Round:
    """One burst."""
    processes = [psutil.Process(pid) for pid in pids]
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    burst = http_load(port, [request], clients, seconds)
    spent = sum(sum(process.cpu_times()[:2]) for process in processes) - before
    return Round(burst.rate, 1e3 * spent / burst.requests)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one burst")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jpeg", type=Path, help="the image; by default a very small one")
    arguments = parser.parse_args()
    body = image() if arguments.jpeg is None else arguments.jpeg.read_bytes()
    request, cores = request_for("v1", body), usable_cores()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source, repository = Path(folder) / "nothing.onnx", Path(folder) / "models"
        onnx.save(network(), source)
        command = [sys.executable, "-m", "fovea_server.cli.main", "build", str(source)]
        options = ["--name", MODEL, "--repository", str(repository), "--backend", "onnxruntime"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        alone, port = start(repository, cores, body, stack)
        pair = [start(repository, max(1, cores // 2), body, stack) for _ in range(2)]
        proxy, shared = start_haproxy([port for _, port in pair], Path(folder), stack)
        designs = {
            "one": ([alone], port),
            "two and HAProxy": ([proxy, *(pid for pid, _ in pair)], shared),
        }
        limits = arguments.clients, arguments.seconds
        for pids, where in designs.values():
            measure(pids, where, request, *limits)
        rounds = [
            {name: measure(*design, request, *limits) for name, design in designs.items()}
            for _ in range(arguments.rounds)
        ]
    one, two = designs
    for name in designs:
        rate = statistics.median(each[name].rate for each in rounds)
        cpu = statistics.median(each[name].cpu_ms for each in rounds)
        print(f"{name:>15}: {rate:6.0f} images/s, {cpu:.3f} ms CPU an image")
    for what in ("rate", "cpu_ms"):
        ratios = [getattr(each[two], what) / getattr(each[one], what) for each in rounds]
        print(
            f"two to one, {what}: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
