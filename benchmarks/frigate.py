"""Measures frames/s of Frigate's ZMQ detector, for one and for six of its processes.

    python benchmarks/frigate.py REPOSITORY MODEL [--seconds 5] [--rounds 3] [--json FILE]

Each process does what Frigate's plugin does: it sends a frame of uint8 pixels, and the next when
the boxes are there. In turn with them, as the limit, the engine alone computes on the same cores.
On a machine that does other work meanwhile, compare CPU times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import zmq

from fovea_engines.device import processor_name
from fovea_engines.engine import Engine
from fovea_engines.repository.repository import ModelRepository
from fovea_server.bench.server_process import ServerProcess, free_port

PROCESSES = (1, 6)
TABLE_BYTES = 480


def ask(address: str, model: str, side: tuple[int, int], seconds: float) -> int:
    """Send frames one after the other; how many were answered."""
    frame = np.random.default_rng(0).integers(0, 255, (1, *side, 3), np.uint8)
    header = json.dumps({"shape": frame.shape, "dtype": "uint8", "model_type": "yologeneric"})
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.connect(address)
        socket.send_json({"model_request": True, "model_name": model})
        assert socket.recv_json()["model_loaded"]
        until, answered = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            socket.send_multipart([header.encode(), frame.tobytes()])
            assert len(socket.recv_multipart()[1]) == TABLE_BYTES
            answered += 1
    return answered


def alone(engine: Engine, seconds: float) -> tuple[float, float]:
    """Frames/s of the engine, in as many threads as keep the cores busy, and CPU ms of each."""
    session = engine.session
    row = np.zeros((1, *session.inputs[0].shape[1:]), session.inputs[0].numpy_dtype)
    feeds, until = engine.feeds(row), time.monotonic() + seconds

    def run(_: int) -> int:
        count = 0
        while time.monotonic() < until:
            session.infer(feeds, alone=session.concurrency == 1)
            count += 1
        return count

    with ThreadPoolExecutor(session.concurrency) as threads:
        used = time.process_time()
        count = sum(threads.map(run, range(session.concurrency)))
        return count / seconds, 1e3 * (time.process_time() - used) / count


def main() -> None:
    """Print the figures for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    address = f"tcp://127.0.0.1:{free_port()}"
    flags = ("--api=frigate-zmq", f"--frigate-address={address}")
    folder = ModelRepository(given.repository).folder(given.model)
    figures: dict[str, dict[str, float]] = {}
    with (
        Engine.open(folder) as engine,
        ServerProcess(given.repository, given.model, flags) as server,
        multiprocessing.get_context("spawn").Pool(max(PROCESSES)) as pool,
    ):
        spec = engine.preprocessor.spec
        asked = (address, given.model, (spec.height, spec.width), given.seconds)
        for count in PROCESSES:
            pool.starmap(ask, [(*asked[:3], 1.0)] * count)
            rounds = []
            for _ in range(given.rounds):
                limit, limit_ms = alone(engine, given.seconds)
                used = server.cpu_s
                answered = sum(pool.starmap(ask, [asked] * count, chunksize=1))
                cpu_ms = 1e3 * (server.cpu_s - used) / answered
                rate = answered / given.seconds
                rounds.append((rate, limit, rate / limit, cpu_ms, limit_ms, cpu_ms / limit_ms))
            names = "frames_per_s", "engine_alone_per_s", "rate_to_engine"
            names += "server_cpu_ms", "engine_cpu_ms", "cpu_to_engine"
            medians = map(statistics.median, zip(*rounds, strict=True))
            figures[str(count)] = {
                name: round(value, 2) for name, value in zip(names, medians, strict=True)
            }
            print(f"{count} processes: {figures[str(count)]}")
    if given.json is not None:
        about = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": f"{processor_name()}, {platform.machine()}",
            "model": given.model,
            "rounds": given.rounds,
        }
        given.json.write_text(json.dumps(about | {"processes": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
