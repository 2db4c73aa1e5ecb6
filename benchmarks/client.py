"""Measures how much of a server's load `AsyncClient` can make: its images/s to those of http_load.

    python benchmarks/client.py [MODEL.onnx ...] [--in-flight 64] [--rounds 5] [--seconds 4]

The first model is a network that computes nothing (overhead.py), where the client is all that is
measured; the others do real work. Each round loads the server with both, in turn, and the ratio is
taken inside the round. Server and client share the machine, so the client's CPU is printed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, takewhile
from pathlib import Path

import onnx
from http_load import http_load
from overhead import image, network, request_for
from serve import COCO, MODEL, start_server
from tables import ratio

from fovea_client import AsyncClient
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan


@dataclass(frozen=True)
class Load:
    """Images/s, and the cores that the client took for them."""

    rate: float
    cores: float


def by_client(port: int, images: list[bytes], in_flight: int, seconds: float) -> Load:
    """Load the server with `AsyncClient.predict_many`, after a first answer."""

    def endless(until: float) -> Iterator[bytes]:
        return takewhile(lambda _: time.perf_counter() < until, cycle(images))

    async def run() -> Load:
        async with AsyncClient(f"http://127.0.0.1:{port}", timeout=60) as client:
            await client.predict(MODEL, images[0])
            began, cpu = time.perf_counter(), time.process_time()
            found = client.predict_many(MODEL, endless(began + seconds), in_flight=in_flight)
            count = sum([1 async for _ in found])
            took = time.perf_counter() - began
            return Load(count / took, (time.process_time() - cpu) / took)

    return asyncio.run(run())


def by_generator(port: int, images: list[bytes], in_flight: int, seconds: float) -> Load:
    """Load the server with the generator of `fovea bench`."""
    found = http_load(port, [request_for("v1", each) for each in images], in_flight, seconds)
    return Load(found.rate, found.generator_cpu)


def measure(source: Path, images: list[bytes], arguments: argparse.Namespace) -> None:
    """Build, serve and load one model, and print a line."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        build(BuildPlan(source, MODEL, repository, "onnxruntime"))
        server, port, _ = start_server(repository, images[0])
        try:
            rounds: list[dict[str, Load]] = []
            ways = {"client": by_client, "generator": by_generator}
            for index in range(arguments.rounds):
                order = list(ways)[:: -1 if index % 2 else 1]
                rounds.append(
                    {
                        way: ways[way](port, images, arguments.in_flight, arguments.seconds)
                        for way in order
                    }
                )
        finally:
            server.terminate()
            server.wait(60)
    cells = [f"{source.stem:<16}"]
    for way in ways:
        rate = statistics.median(each[way].rate for each in rounds)
        cores = statistics.median(each[way].cores for each in rounds)
        cells.append(f"{way} {rate:7.1f} images/s, {cores:.2f} cores")
    ratios = [each["client"].rate / each["generator"].rate for each in rounds]
    print("  ".join([*cells, ratio(ratios)]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one burst")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder) / "nothing.onnx"
        onnx.save(network(), nothing)
        measure(nothing, [image()], arguments)
    for model in arguments.models:
        photographs = sorted((COCO / "val").glob("*.jpg"))
        measure(model, [each.read_bytes() for each in photographs], arguments)


if __name__ == "__main__":
    main()
