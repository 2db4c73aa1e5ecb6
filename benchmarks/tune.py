"""The search of `fovea tune` against an exhaustive one, over the same grid.

    python benchmarks/tune.py MODEL.onnx [--images DIR] [--p99-ms 200] [--json FILE]

Builds the model for some backends and precisions, searches, measures the whole grid, and then
measures what both chose in turn, a few times: the ratio is the median of these pairs. Every run is
of the real server, `seconds` long, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from tables import ratio

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.repository import ModelRepository
from fovea_server.bench.tune.candidates import find_candidates
from fovea_server.bench.tune.search import Search
from fovea_server.bench.tune.setting import grid, present_setting
from fovea_server.bench.tune.trials import Trials

NAME = "tuned"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, default=Path("../shared/data/coco64/val"))
    parser.add_argument("--p99-ms", type=float, default=float("inf"), help="default: no limit")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--backend", nargs="+", default=CPU_BACKENDS)
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--max-batch", type=int, default=1, help="of engines for a GPU")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run")
    parser.add_argument("--pairs", type=int, default=3, help="of runs in the end")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments, Path(folder))
    report |= {
        "model": arguments.model.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
    }
    print(json.dumps(report, indent=1))
    print(
        f"\n{report['search_runs']} runs of {report['exhaustive_runs']}: "
        f"{ratio(report['ratios'])} of what the exhaustive search chose"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Build, search, measure the whole grid, and compare."""
    progress = ConsoleProgress()
    plan = BuildPlan(
        source=arguments.model,
        name=NAME,
        repository=folder,
        max_batch=arguments.max_batch,
    )
    for backend, precision in product(arguments.backend, arguments.precision):
        calibration = arguments.images if precision == "int8" else None
        own = {"backend": backend, "precision": precision, "calibration": calibration}
        build(replace(plan, **own), progress)
    candidates, _ = find_candidates(ModelRepository(plan.repository), NAME)
    cores, limit_ms = usable_cores(), arguments.p99_ms
    settings = grid(candidates, cores)
    with Trials(
        plan.repository / NAME,
        candidates,
        arguments.images,
        cores=cores,
        seconds=arguments.seconds,
    ) as trials:
        search = Search(settings, arguments.clients, limit_ms, trials.measure)
        chosen, _ = search.descend(present_setting(trials.config, candidates[0], cores))
        best, *runs = (
            trials.measure(setting, clients, False)
            for setting in settings
            for clients in arguments.clients
        )
        for run in runs:
            best = run if run.better(best, limit_ms) else best
        pairs = [
            [trials.measure(run.setting, run.clients, True) for run in (chosen, best)]
            for _ in range(arguments.pairs)
        ]
    ratios = [round(own.rate / other.rate, 3) for own, other in pairs]
    return {
        "grid": len(settings) * len(arguments.clients),
        "search_runs": len(search.runs),
        "exhaustive_runs": 1 + len(runs),
        "limit_ms": None if limit_ms == float("inf") else limit_ms,
        "search": chosen.to_json(),
        "exhaustive": best.to_json(),
        "ratios": ratios,
        "ratio": round(statistics.median(ratios), 3),
        "p99_ms": [[round(run.p99_ms, 1) for run in pair] for pair in pairs],
    }


if __name__ == "__main__":
    main()
