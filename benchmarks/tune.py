"""The search of `fovea tune` against an exhaustive one, over the same grid.

    python benchmarks/tune.py MODEL.onnx [--images DIR] [--p99-ms 200] [--json FILE]

Builds the model for both backends of the CPU, searches, measures the whole grid, and then measures
what both chose in turn, a few times: the ratio is the median of these pairs. Every run is of the
real server, `seconds` long, after a warm-up.
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
from pathlib import Path

from tables import ratio

from fovea_engines.backends.cores import usable_cores
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.repository import ModelRepository
from fovea_server.tune.candidates import backends_here, build_candidates, find_candidates
from fovea_server.tune.search import Search
from fovea_server.tune.setting import grid, present
from fovea_server.tune.trials import Trials

NAME = "tuned"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, default=Path("../shared/data/coco64/val"))
    parser.add_argument("--p99-ms", type=float, default=float("inf"), help="default: no limit")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--max-batch", type=int, nargs="+", default=[1, 2])
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
    """Build, search twice, and compare."""
    progress = ConsoleProgress()
    plan = BuildPlan(source=arguments.model, name=NAME, repository=folder / "repository")
    build(plan, progress)
    found = build_candidates(
        find_candidates(ModelRepository(plan.repository), NAME),
        replace(plan, repository=folder / "scratch"),
        [(backend, "fp32") for backend in backends_here()],
        arguments.max_batch,
        2,
        progress,
    )
    cores, limit_ms = usable_cores(), arguments.p99_ms
    settings = grid(found.candidates, cores)
    with Trials(
        plan.repository / NAME,
        found.candidates,
        arguments.images,
        cores=cores,
        seconds=arguments.seconds,
    ) as trials:
        short = Search(settings, arguments.clients, limit_ms, trials.measure)
        chosen = short.descend(present(trials.config, found.candidates[0], cores))
        whole = Search(settings, arguments.clients, limit_ms, trials.measure)
        best = whole.exhaust()
        pairs = [
            [trials.measure(run.setting, run.clients, True) for run in (chosen, best)]
            for _ in range(arguments.pairs)
        ]
    ratios = [round(own.rate / other.rate, 3) for own, other in pairs]
    return {
        "grid": len(settings) * len(arguments.clients),
        "search_runs": len(short.runs),
        "exhaustive_runs": len(whole.runs),
        "limit_ms": None if limit_ms == float("inf") else limit_ms,
        "search": chosen.to_json(),
        "exhaustive": best.to_json(),
        "ratios": ratios,
        "ratio": round(statistics.median(ratios), 3),
        "p99_ms": [[round(run.p99_ms, 1) for run in pair] for pair in pairs],
    }


if __name__ == "__main__":
    main()
