"""Runs MLPerf's scenarios, by `fovea bench --mlperf`, and prints a table; unverified by MLCommons.

    python benchmarks/mlperf.py [--quick SECONDS] [--models yolov8n yolo11l] [--json FILE]

Each model is built in FP32, bfloat16 and INT8, with the fastest backend, and runs SingleStream,
MultiStream and Offline over HTTP. Times are from a JPEG to its boxes: LoadGen's own rules leave
decoding and resizing out. Without `--quick` a scenario takes ten minutes, as MLPerf wants it.
YOLO11-l has random weights (`yolo11l.py`), so its INT8 is not built: there is nothing to keep.
"Core-seconds" are the CPU time of server and load in Offline; of published rows, the cores of the
machine by the seconds of an image. `--overhead` times LoadGen alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from serve import COCO
from tables import SCENARIOS, mlperf
from yolo11l import yolo11l

from fovea_bench.mlperf.carriers import LoopCarrier
from fovea_bench.mlperf.run import loadgen_run
from fovea_bench.mlperf.scenario import Scenario, Terms
from fovea_engines.device import processor_name, sets_for

SHARED = Path(__file__).resolve().parents[2] / "shared"
FOVEA = (sys.executable, "-m", "fovea_server.cli.main")
MODELS = ("yolov8n", "yolov5n", "mobilenetv2", "yolo11l")


class Nothing(LoopCarrier):
    """Answers at once, from the event loop that would send requests."""

    async def _ask(self, request: bytes) -> str:
        return ""


def overhead(seconds: float) -> None:
    """Print the time that LoadGen, its bindings and the event loop add to a query."""
    for scenario in map(Scenario, SCENARIOS):
        with tempfile.TemporaryDirectory() as folder:
            carrier = partial(Nothing, [b""], None, 30.0)
            terms = Terms(scenario, seconds)
            run = loadgen_run(terms, carrier, Path(folder), 1.0, lambda _: None)
        figure, cpu_us = run.figure or 0.0, 1e6 * run.cpu_s / run.samples
        print(f"{scenario}: {scenario.figure}: {figure:.3f}; {cpu_us:.1f} us of CPU an image")


def build(model: str, precision: str, repository: Path) -> str | None:
    """Build a model that is not there; returns its name, or None if it fails its check."""
    name = f"{model}-{precision}"
    if (repository / name).is_dir():
        return name
    source = SHARED / "models" / f"{model}.onnx"
    if model == "yolo11l":
        source = repository.parent / f"{model}.onnx"
        onnx.save(yolo11l()[0], source)
    words = [f"{source}", f"--name={name}", f"--repository={repository}"]
    words.append(f"--precision={precision}")
    if precision == "int8":
        words.append(f"--calibration={COCO / 'calibration'}")
    done = subprocess.run([*FOVEA, "build", *words], stdout=subprocess.DEVNULL)
    return name if done.returncode == 0 else None


def run(model: str, scenario: str, repository: Path, quick: float | None) -> dict[str, Any]:
    """Run a scenario; returns the document of `fovea bench --json`."""
    logs = repository.parent / "mlperf" / model / scenario
    words = [model, f"--repository={repository}", f"--mlperf={scenario}", "--json"]
    words.append("--timeout=300")  # of YOLO11-l many are under way
    words += [f"--images={COCO / 'val'}", f"--logs={logs}"]
    if quick is not None:
        words += ["--quick", f"--seconds={quick}"]
    done = subprocess.run([*FOVEA, "bench", *words], stdout=subprocess.PIPE)
    if not done.stdout:
        raise SystemExit(f"{model}, {scenario}: exit code {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--quick", type=float, metavar="SECONDS", help="length of a scenario")
    parser.add_argument("--repository", type=Path, help="build there, once, and keep the logs")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--overhead", action="store_true", help="time LoadGen alone")
    arguments = parser.parse_args()
    if arguments.overhead:
        overhead(arguments.quick or 10.0)
        return
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "runs": {},
    }
    precisions = ["fp32", *["bf16"] * bool(sets_for("bf16")), "int8"]
    with tempfile.TemporaryDirectory() as folder:
        repository = arguments.repository or Path(folder) / "models"
        for model in arguments.models:
            for precision in precisions[: -1 if model == "yolo11l" else None]:
                if (name := build(model, precision, repository)) is None:
                    continue
                report["runs"][f"{model} {precision}"] = {
                    scenario: run(name, scenario, repository, arguments.quick)
                    for scenario in SCENARIOS
                }
                if arguments.json:  # each row takes half an hour
                    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['machine']}; {report['date']}\n\n{mlperf(report)}")


if __name__ == "__main__":
    main()
