"""Measures the cost of traces (`--otel`): images for a network that computes nothing.

    python benchmarks/tracing.py [--ratios 0 0.01 1] [--rounds 10] [--seconds 3] [--clients 4]

The network is that of `overhead.py`, so that a request is as cheap as one can be, and its traces as
dear. A server without traces and one with them take bursts in turn, and each pair gives a ratio of
CPU time and one of images/s: other programs on the machine slow both. The spans go to a receiver
in a process of its own, which drops them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path

import onnx
import psutil
from overhead import MODEL, Round, image, measure, network, request_for
from serve import start_server


class _Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Drop the spans."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *about: object) -> None:
        """Say nothing."""


def _receive(server: ThreadingHTTPServer) -> None:
    server.serve_forever()


@contextmanager
def receiver() -> Iterator[str]:
    """A process that takes spans; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        process = get_context("fork").Process(target=_receive, args=(server,), daemon=True)
        process.start()
        yield f"http://127.0.0.1:{server.server_port}"
        process.kill()
        process.join()


@contextmanager
def served(repository: Path, body: bytes, **settings: str) -> Iterator[tuple[int, psutil.Process]]:
    """A server with these settings: its port and process."""
    server, port, _ = start_server(repository, body, settings | {"FOVEA_LOG_ACCESS": "false"})
    try:
        yield port, psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait(60)


def spread(ratios: list[float]) -> str:
    """The median and the quartiles, as percent over or under 1."""
    low, middle, high = statistics.quantiles([100 * (ratio - 1) for ratio in ratios], n=4)
    return f"{middle:+5.1f} % ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratios", nargs="+", default=["0", "0.01", "1"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one burst")
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    body = image()
    request = request_for("v1", body)

    def burst(to: tuple[int, psutil.Process]) -> Round:
        return measure(*to, request, arguments.clients, arguments.seconds)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source, repository = Path(folder) / "nothing.onnx", Path(folder) / "models"
        onnx.save(network(), source)
        build = [sys.executable, "-m", "fovea_server.cli.main", "build", str(source)]
        named = ["--name", MODEL, "--repository", str(repository), "--backend", "onnxruntime"]
        subprocess.run([*build, *named], check=True, stdout=subprocess.DEVNULL)
        collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.enter_context(receiver())}
        plain = stack.enter_context(served(repository, body))
        # Two servers without traces differ by chance alone.
        others = {"none": {}} | {
            ratio: {"FOVEA_OTEL": "true", "FOVEA_OTEL_RATIO": ratio} for ratio in arguments.ratios
        }
        for name, settings in others.items():
            with served(repository, body, **collector, **settings) as traced:
                pairs: list[tuple[Round, Round]] = []
                burst(plain), burst(traced)
                for number in range(arguments.rounds):
                    # Each is first in half of the pairs.
                    if number % 2:
                        second, first = burst(traced), burst(plain)
                    else:
                        first, second = burst(plain), burst(traced)
                    pairs.append((first, second))
            cpu = spread([second.cpu_ms / first.cpu_ms for first, second in pairs])
            rate = spread([second.rate / first.rate for first, second in pairs])
            base = statistics.median(first.cpu_ms for first, _ in pairs)
            print(f"traced {name:>5}: CPU {cpu}, images/s {rate}; {base:.3f} ms CPU without")


if __name__ == "__main__":
    main()
