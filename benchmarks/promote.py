"""Promotions and roll-backs under load: what fails, how long each takes, what a kill leaves.

    PYTHONPATH=. python benchmarks/promote.py [--mode explicit poll ray] [--times 50] [--clients 8]
        [--json FILE]

So many clients of HTTP, and as many of gRPC, ask the digits demo for no version, each without
pause, while version 1 is promoted and taken back to 2. Every answer must be of one of the two. At
the end versions change without pause until what writes the history is killed (SIGKILL), and then
the file must have each change that was answered, at most one more, and no broken line. `ray` is
one node with a front and two replicas, and all of its processes that serve are killed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil
from tests.conftest import DEMO
from tests.promoting import MODES, change_until_it_dies, clients, there_and_back
from tests.serving import PROGRAM, free_ports, start_server, wait_until_ready

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.repository.repository import ModelRepository

MODEL = "digits"


@dataclass
class Outcome:
    """The figures of a mode; `complete`: the history has all after the kill."""

    mode: str
    changes: int
    answers: dict[str, int]
    failed: list[str]
    change_p50_ms: float
    change_max_ms: float
    changes_until_kill: int
    complete: bool


@contextmanager
def served(mode: str, repository: Path, folder: Path) -> Iterator[tuple[str, str, Callable]]:
    """Serve; the addresses of HTTP and gRPC, and what kills it."""
    if mode != "ray":
        server = start_server(repository, folder, MODES[mode], program=PROGRAM)
        try:
            yield server.url, f"127.0.0.1:{server.grpc_port}", server.process.kill
        finally:
            server.process.kill()
            server.process.wait()
        return
    from ray_front import cluster, deploy

    http_port, grpc_port = free_ports(2)
    with cluster() as running:
        deploy(running, repository, folder, http_port, 2, grpc_port=grpc_port)
        wait_until_ready(http_port)

        def kill() -> None:
            for process in psutil.Process().children(recursive=True):
                if process.name().startswith("ray::"):
                    process.kill()

        yield f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", kill


def measure(mode: str, times: int, each: int) -> Outcome:
    """Run one mode."""
    with tempfile.TemporaryDirectory() as work:
        repository = Path(work) / "repository"
        for backend in ("onnxruntime", "openvino"):
            build(BuildPlan(DEMO / "digits.onnx", MODEL, repository, backend))
        models = ModelRepository(repository)
        with served(mode, repository, Path(work)) as (url, grpc, kill):
            with clients(url, grpc, each) as loads:
                took = there_and_back(url, loads, times)
            answers, failed = Counter(), []
            for load in loads:
                answers += load.answered
                failed += load.failed
            before = len(models.history(MODEL).events)
            thread, told = change_until_it_dies(url, before)
            time.sleep(5)
            kill()
            thread.join()
        # A line that is none is an error, and one that was not ended is left out.
        after = len(models.history(MODEL).events)
    return Outcome(
        mode=mode,
        changes=before,
        answers=dict(answers),
        failed=failed,
        change_p50_ms=round(1e3 * median(took), 1),
        change_max_ms=round(1e3 * max(took), 1),
        changes_until_kill=told[-1] - before,
        complete=before == 2 * times and told[-1] <= after <= told[-1] + 1,
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    modes = ["explicit", "poll", "ray"]
    parser.add_argument("--mode", nargs="+", choices=modes, default=modes)
    parser.add_argument("--times", type=int, default=50, help="there and back")
    parser.add_argument("--clients", type=int, default=8, help="of each protocol")
    parser.add_argument("--json", type=Path, help="write the figures")
    given = parser.parse_args()
    row = "{:10}{:>9}{:>10}{:>8}{:>10}{:>10}{:>14}{:>10}".format
    head = "mode", "changes", "answers", "failed", "p50 ms", "max ms", "until killed"
    print(row(*head, "complete"))
    found = []
    for mode in given.mode:
        one = measure(mode, given.times, given.clients)
        found.append(one)
        counts = one.changes, sum(one.answers.values()), len(one.failed)
        times = one.change_p50_ms, one.change_max_ms, one.changes_until_kill
        print(row(mode, *counts, *times, str(one.complete)), flush=True)
    if given.json:
        report = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {usable_cores()} cores",
            "clients": f"{given.clients} of HTTP, {given.clients} of gRPC",
            "modes": [asdict(one) for one in found],
        }
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    if any(one.failed or not one.complete or {*one.answers} - {"1", "2"} for one in found):
        raise SystemExit("not every request was answered, or not every change kept: see above")


if __name__ == "__main__":
    main()
