"""Images a second of each CPU backend: alone and side by side, in both thread layouts.

    python benchmarks/backends.py [MODEL] [--rounds 7] [--seconds 1] [--json]

Every round measures every case once, in turn, so that a noisy neighbour hits all of them; what
can be compared is the median over the rounds of the ratio to the case in question of the first
backend, with wide for one caller and narrow for several. Memory and loading are measured in a
process of their own for each backend, over a Python that has numpy imported.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from fovea_engines.backends.registry import (
    CPU_BACKENDS,
    available_backends,
    get_backend,
    open_session,
)
from fovea_engines.device import processor_name
from fovea_engines.evaluation.speed import call_rate
from fovea_engines.session import Session

MODEL = Path(__file__).resolve().parents[2] / "shared" / "models" / "yolov8n.onnx"
BATCHES = (1, 4, 8)


class Case(NamedTuple):
    """One line of the table."""

    backend: str
    batch: int
    callers: int
    layout: str


def feeds_of(session: Session, batch: int) -> dict[str, np.ndarray]:
    """Noise for every input; a dynamic side is taken as 640."""
    random = np.random.default_rng(0)
    return {
        spec.name: random.random(
            (batch, *(640 if side < 0 else side for side in spec.shape[1:]))
        ).astype(spec.numpy_dtype)
        for spec in session.inputs
    }


def images_per_second(session: Session, case: Case, seconds: float) -> float:
    """Calls for so long from `case.callers` threads, the last ones finished and counted."""
    feeds, alone = feeds_of(session, case.batch), case.layout == "wide"

    def call(_: int) -> object:
        return session.infer(feeds, alone=alone)

    return call_rate(call, callers=case.callers, seconds=seconds) * case.batch


def probe(backend: str, engine: Path) -> dict[str, float]:
    """Load seconds, first answers and MB that one backend costs a fresh process, batch 1."""
    process = psutil.Process()
    before, start = process.memory_info().rss, time.perf_counter()
    with open_session(backend, engine, max_batch=1) as session:
        loaded = time.perf_counter() - start
        feeds = feeds_of(session, 1)
        session.infer(feeds, alone=True)
        answered = time.perf_counter() - start
        for case in (Case(backend, 1, 1, "wide"), Case(backend, 1, session.concurrency, "narrow")):
            images_per_second(session, case, 1.0)
        return {
            "load_s": round(loaded, 3),
            "first_answer_s": round(answered, 3),
            "rss_mb": round((process.memory_info().rss - before) / 1e6, 1),
        }


def probe_apart(backend: str, engine: Path, rounds: int) -> dict[str, float]:
    """Median of `probe` over fresh processes."""
    command = [sys.executable, __file__, "--probe", backend, str(engine)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def measure(engines: dict[str, Path], rounds: int, seconds: float) -> list[dict[str, object]]:
    """Every case in turn, `rounds` times."""
    sessions = {
        (backend, batch): open_session(backend, engine, max_batch=batch)
        for backend, engine in engines.items()
        for batch in BATCHES
    }
    cases = [
        Case(backend, batch, callers, layout)
        for (backend, batch), session in sessions.items()
        for callers in dict.fromkeys((1, session.concurrency))
        for layout in ("wide", "narrow")
    ]
    speeds: dict[Case, list[float]] = {case: [] for case in cases}
    for case in cases:
        images_per_second(sessions[case.backend, case.batch], case, 0)
    for _ in range(rounds):
        for case in cases:
            session = sessions[case.backend, case.batch]
            speeds[case].append(images_per_second(session, case, seconds))
    first = next(iter(engines))
    rows: list[dict[str, object]] = []
    for case in cases:
        yardstick = Case(first, 1, case.callers, "wide" if case.callers == 1 else "narrow")
        pairs = zip(speeds[case], speeds[yardstick], strict=True)
        rows.append(
            {
                **case._asdict(),
                "images_per_s": round(statistics.median(speeds[case]), 2),
                "ratio": round(statistics.median(a / b for a, b in pairs), 3),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--probe", choices=list(CPU_BACKENDS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        print(json.dumps(probe(args.probe, args.model)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        engines = {}
        for backend in CPU_BACKENDS:
            folder = Path(scratch, backend)
            folder.mkdir()
            engines[backend] = get_backend(backend).compile(args.model, folder)
        report = {
            "date": datetime.now(UTC).date().isoformat(),
            "processor": processor_name(),
            "model": args.model.name,
            "rounds": args.rounds,
            "load_average": os.getloadavg(),
            "versions": {info.name: info.version for info in available_backends()},
            "costs": {name: probe_apart(name, path, 3) for name, path in engines.items()},
            "speeds": measure(engines, args.rounds, args.seconds),
        }
    if args.json:
        print(json.dumps(report, indent=1))
        return
    for name, cost in report["costs"].items():
        print(name, *(f"{key} {value}" for key, value in cost.items()))
    print(f"{'backend':12} {'batch':>5} {'callers':>7} {'layout':7} {'images/s':>8} {'ratio':>6}")
    for row in report["speeds"]:
        backend, batch, callers, layout, speed, ratio = row.values()
        print(f"{backend:12} {batch:5} {callers:7} {layout:7} {speed:8.2f} {ratio:6.3f}")


if __name__ == "__main__":
    main()
