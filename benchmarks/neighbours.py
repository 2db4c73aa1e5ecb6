"""Lone calls beside neighbours on the cores, as a ratio to the better of both thread layouts.

    python benchmarks/neighbours.py [MODEL ...] [--rounds 5] [--seconds 2] [--json FILE]

Each CPU backend is measured in each situation: a quiet machine, a process that burns one core, one
on each core, and a quota of 1.5 cores (of cgroup v1, for root). `wide` and `narrow` are fixed;
`chosen` is the layout that a session takes by itself. `bare` is ONNX Runtime with its own defaults.
They take turns; the medians over the rounds are compared. `back_s` is the time from the end of the
neighbour until calls are as fast as they were before it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fovea_engines.backends.registry import CPU_BACKENDS, get_backend, open_session
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.session import Session

SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"
MODELS = (SHARED / "yolox_nano.onnx", SHARED / "yolov8n.onnx")
GROUP = Path("/sys/fs/cgroup/cpu/neighbours")
BURN = "while True: pass"
Call = Callable[[], object]
Row = dict[str, str | float]


@contextmanager
def quiet() -> Iterator[None]:
    """No neighbour."""
    yield


@contextmanager
def burnt(count: int) -> Iterator[None]:
    """So many processes that compute without a rest."""
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """This process may use so many cores."""
    GROUP.mkdir(exist_ok=True)
    try:
        (GROUP / "cpu.cfs_period_us").write_text("100000")
        (GROUP / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        GROUP.rmdir()


SITUATIONS = {
    "quiet": quiet,
    "one core burnt": lambda: burnt(1),
    "each core burnt": lambda: burnt(usable_cores()),
    "quota of 1.5 cores": lambda: quota(1.5),
}


def image_of(session: Session) -> dict[str, NDArray[np.float32]]:
    """Noise of the size of the model; a dynamic side is 640."""
    (spec,) = session.inputs
    shape = [1, *(640 if side < 0 else side for side in spec.shape[1:])]
    return {spec.name: np.random.default_rng(0).random(shape, dtype=np.float32)}


def calls_for(seconds: float, call: Call) -> list[float]:
    """Call for so long; the seconds of each call."""
    until = time.perf_counter() + seconds
    took = []
    while (began := time.perf_counter()) < until:
        call()
        took.append(time.perf_counter() - began)
    return took


def rate(seconds: float, call: Call) -> float:
    """Calls a second."""
    took = calls_for(seconds, call)
    return len(took) / sum(took)


def back_s(call: Call) -> float:
    """Return the seconds after the end of a neighbour until five calls are fast again."""
    fast = 1.2 * statistics.median(calls_for(2, call))
    with burnt(usable_cores()):
        calls_for(3, call)
    ended = time.perf_counter()
    last: list[float] = []
    while time.perf_counter() < ended + 10:
        began = time.perf_counter()
        call()
        last = [*last[-4:], time.perf_counter() - began]
        if len(last) == 5 and max(last) < fast:
            return time.perf_counter() - ended - sum(last)
    return float("inf")


def measure(backend: str, engine: Path, model: Path, rounds: int, seconds: float) -> Iterator[Row]:
    """One row for each situation."""
    wide = open_session(backend, engine, max_batch=1, streams=1)
    both = open_session(backend, engine, max_batch=1)
    feeds = image_of(both)
    ways: dict[str, Call] = {
        "wide": lambda: wide.infer(feeds),
        "narrow": lambda: both.infer(feeds, alone=False),
        "chosen": lambda: both.infer(feeds),
    }
    if backend == "onnxruntime":
        bare = onnxruntime.InferenceSession(engine, providers=["CPUExecutionProvider"])
        ways["bare"] = lambda: bare.run(None, feeds)
    for name, situation in SITUATIONS.items():
        with situation():
            # The layout is chosen anew before figures count.
            calls_for(2, ways["chosen"])
            rates: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, call in ways.items():
                    rates[way].append(rate(seconds, call))
        medians = {way: statistics.median(values) for way, values in rates.items()}
        better = max(medians["wide"], medians["narrow"])
        yield {
            "model": model.stem,
            "backend": backend,
            "situation": name,
            **{f"{way}_per_s": round(value, 2) for way, value in medians.items()},
            "ratio": round(medians["chosen"] / better, 3),
        }
    yield {
        "model": model.stem,
        "backend": backend,
        "back_s": round(statistics.median(back_s(ways["chosen"]) for _ in range(rounds)), 2),
    }
    wide.close()
    both.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in args.models:
            for backend in CPU_BACKENDS:
                folder = Path(scratch, model.stem, backend)
                folder.mkdir(parents=True)
                engine = get_backend(backend).compile(model, folder)
                for row in measure(backend, engine, model, args.rounds, args.seconds):
                    print(*(f"{key} {value}" for key, value in row.items()), sep="  ", flush=True)
                    rows.append(row)
    if args.json:
        report = {
            "date": datetime.now(UTC).date().isoformat(),
            "processor": processor_name(),
            "cores": usable_cores(),
            "rows": rows,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
