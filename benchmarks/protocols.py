"""Measures gRPC beside HTTP on one server: images for a network that computes nothing.

    python benchmarks/protocols.py [--http 16] [--grpc 4] [--seconds 5] [--rounds 3]
        [--switch-ms 5 0.5]

Clients of HTTP keep the server busy while clients of gRPC ask it, too. Printed are the rates and
the median latencies of both, the answers over HTTP in the time of a call of gRPC, which a slow
machine does not change, and the server's CPU for an image. `--switch-ms` compares servers whose
threads may hold the interpreter so long while another thread waits for it; they take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import httpx
import numpy as np
import onnx
import psutil
import tritonclient.grpc as triton
from http_load import http_load
from overhead import MODEL, image, network, request_for
from serve import free_ports

SERVE = "import sys; from fovea_server.cli.main import main; {}main()"


@contextmanager
def serving(repository: Path, switch_ms: float | None) -> Iterator[tuple[psutil.Process, int, int]]:
    """A server, with its ports of HTTP and gRPC."""
    port, grpc_port, metrics_port = free_ports(3)
    knob = "" if switch_ms is None else f"sys.setswitchinterval({switch_ms / 1e3}); "
    flags = [f"--port={port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    command = [sys.executable, "-c", SERVE.format(knob), "serve", str(repository), *flags]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").is_success:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield psutil.Process(server.pid), port, grpc_port
    finally:
        server.terminate()
        server.wait(60)


def ask(port: int, clients: int, seconds: float) -> None:
    """Ask over gRPC, and print the milliseconds of each answer."""
    body = np.array([[image()]], object)
    took: list[float] = []

    def client() -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as connection:
            name = connection.get_model_metadata(MODEL).inputs[0].name
            tensor = triton.InferInput(name, [1, 1], "BYTES")
            tensor.set_data_from_numpy(body)
            until = time.perf_counter() + seconds
            while (began := time.perf_counter()) < until:
                connection.infer(MODEL, [tensor])
                took.append(1e3 * (time.perf_counter() - began))

    threads = [Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(took))


def both(
    server: psutil.Process, port: int, grpc_port: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """One burst of both protocols."""
    before = sum(server.cpu_times()[:2])
    given = {"--ask": grpc_port, "--grpc": arguments.grpc, "--seconds": arguments.seconds}
    options = [word for name, value in given.items() for word in (name, str(value))]
    grpc = subprocess.Popen([sys.executable, __file__, *options], stdout=subprocess.PIPE)
    burst = http_load(port, [request_for("v1", image())], arguments.http, arguments.seconds)
    took = json.loads(grpc.communicate()[0])
    spent = sum(server.cpu_times()[:2]) - before
    p50_ms = statistics.median(took)
    return {
        "HTTP/s": burst.rate,
        "HTTP p50 ms": burst.p50_ms,
        "gRPC/s": len(took) / arguments.seconds,
        "gRPC p50 ms": p50_ms,
        "HTTP in a call": p50_ms * burst.rate / 1e3,
        "CPU ms": 1e3 * spent / (burst.requests + len(took)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", type=int, default=16, help="clients")
    parser.add_argument("--grpc", type=int, default=4, help="clients")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one burst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--switch-ms", type=float, nargs="+", default=[None])
    parser.add_argument("--ask", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        ask(arguments.ask, arguments.grpc, arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source, repository = Path(folder) / "nothing.onnx", Path(folder) / "models"
        onnx.save(network(), source)
        command = [sys.executable, "-m", "fovea_server.cli.main", "build", str(source)]
        options = ["--name", MODEL, "--repository", str(repository), "--backend", "onnxruntime"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        servers = {
            knob: stack.enter_context(serving(repository, knob)) for knob in arguments.switch_ms
        }
        rounds = [
            {knob: both(*server, arguments) for knob, server in servers.items()}
            for _ in range(arguments.rounds)
        ]
        for knob in servers:
            figures = {
                name: statistics.median(each[knob][name] for each in rounds)
                for name in rounds[0][knob]
            }
            title = "as it is" if knob is None else f"{knob:g} ms"
            print(f"{title:>10}", *(f"{name} {value:8.2f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
