"""Print the tables of README and docs from the newest figures in benchmarks/results.

    python benchmarks/tables.py

One rule holds for all of them. A rate is the median of its rounds. A ratio is taken inside each
round, where both sides are measured in turn: x, its median, and the lowest and highest in brackets.
Accuracy has no leading zero.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# Clients -> HTTP requests/s of a Triton 2.51 with a Python backend, its worst and its best run, and
# of the bare answer beside it; on another machine. Only these were recorded.
TRITON = {1: (2160, 2760, 4990), 8: (4080, 4820, 11360), 32: (4200, 6360, 8700)}
# MLPerf's scenarios that have a column.
SCENARIOS = ("SingleStream", "MultiStream", "Offline")
# YOLO11-l on CPUs, MLPerf Inference v6.0: cores, SingleStream in ms, Offline in images/s.
PUBLISHED = {"i9-13900K, 24 cores": (24, 90.1, 12.07), "GB10, 20 cores": (20, 612.0, 1.75)}


def newest(kind: str) -> dict[str, Any]:
    """Figures of the last run of one benchmark; file names begin with its date."""
    return json.loads(max(RESULTS.glob(f"*-{kind}.json")).read_text())


def rate(row: dict[str, Any], digits: int = 0) -> str:
    """Median of the rounds, and the lowest and highest where they are recorded."""
    return spread(row.get("rates", [row["rate"]]), f",.{digits}f")


def ratio(rounds: Sequence[float]) -> str:
    """Median of the ratios of the rounds, with the lowest and highest."""
    return f"x{spread(rounds, '.2f')}"


def spread(values: Sequence[float], how: str) -> str:
    """Median, and the lowest and highest in brackets where they differ."""
    middle, low, high = (
        format(value, how) for value in (statistics.median(values), min(values), max(values))
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def between(values: Sequence[float], how: str) -> str:
    """From the lowest to the highest."""
    low, high = format(min(values), how), format(max(values), how)
    return low if low == high else f"{low}-{high}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def precision() -> str:
    """Gain and loss of bfloat16 and INT8."""
    accuracies = {"fp32": "mAP50-95 FP32", "bf16": "mAP bf16", "int8": "mAP INT8"}
    rows = []
    for model, found in newest("precision")["models"].items():
        rates = found.get("rates", {n: [rate] for n, rate in found["images_per_s"].items()})
        fp32 = [rounds for name, rounds in rates.items() if name.startswith("fp32")]
        kept = [accuracy(found["map50_95"][name]) for name in accuracies]
        fastest = spread(max(fp32, key=statistics.median), ".1f")
        gains = [ratio(found["ratios"][name]) for name in ("bf16", "int8")]
        rows.append([model, fastest, *gains, *kept])
    head = ["model", "fastest FP32, images/s", "bf16 to it", "INT8 to it"]
    return markdown([*head, *accuracies.values()], rows)


def tasks() -> str:
    """Accuracy in FP16 and INT8, a model of each task."""
    models = newest("tasks")["models"]
    judged = (
        ("yolov8n-seg-320", "mAP50-95 of masks (FP32: {fp32})", "map50_95"),
        ("mobilenetv2", "images with the same first class as in FP32", "same_top"),
        ("u2netp", "agreement of the foreground with FP32", "shared"),
    )
    rows = []
    for model, title, figure in judged:
        found = {p: accuracy(models[model][p][figure]) for p in ("fp32", "fp16", "int8")}
        rows.append([model, title.format_map(found), found["fp16"], found["int8"]])
    return markdown(["model", "judged by", "FP16", "INT8"], rows)


def accuracy(value: float) -> str:
    """Three digits, without the leading zero."""
    return f"{value:.3f}".removeprefix("0")


def ray_front() -> str:
    """A cluster of Ray over plain servers, on two processors."""
    reports = {
        cpu: newest(kind) for cpu, kind in (("EPYC", "ray-front"), ("Xeon", "ray-front-xeon"))
    }
    beside = {1: "one replica to one server", 2: "two to two behind HAProxy"}
    rows = []
    for model in ("yolox_nano", "yolov8n"):
        for count, what in beside.items():
            cells = [f"{model}, {what}"]
            for figure in ("cpu_ms", "rate"):
                for report in reports.values():
                    found = report[f"{model}, {count} x 1 core"]
                    pairs = zip(found[f"ray_{figure}"], found[f"plain_{figure}"], strict=True)
                    cells.append(ratio([ray / plain for ray, plain in pairs]))
            rows.append(cells)
    head = [f"{title}: {cpu}" for title in ("CPU", "images/s") for cpu in reports]
    return markdown(["", *head], rows)


def serve() -> str:
    """Images over HTTP, by model and precision: for one client and for a crowd."""
    runs = [(m, p) for m in ("yolov8n", "yolox_nano") for p in ("fp32", "bf16", "int8")]
    rows = []
    for model, precision in runs:
        found = newest(f"serve-{model}-{precision}")["http"]
        rows.append([f"{model} {precision}"])
        for row in (found["1"], found["16"]):
            rows[-1] += [rate(row, 1), f"{row['p50_ms']:.0f} / {row['p99_ms']:.0f}"]
    waits = "p50 / p99, ms"
    return markdown(["", "1 client: images/s", waits, "16 clients: images/s", waits], rows)


def triton() -> str:
    """Tensors over HTTP and gRPC."""
    loads: dict[str, dict[int, dict[str, Any]]] = {}
    for row in newest("triton-simple")["rows"]:
        loads.setdefault(row["load"], {})[row["clients"]] = row

    def measured(title: str, load: str) -> list[str]:
        rows = [loads[load][clients] for clients in TRITON]
        return [title, *map(rate, rows)]

    return markdown(
        ["requests/s", *(f"{n} client{'s' * (n > 1)}" for n in TRITON)],
        [
            measured("HTTP, binary tensors", "HTTP"),
            measured("the same, from perf_analyzer", "perf_analyzer http"),
            measured("gRPC, from perf_analyzer", "perf_analyzer grpc"),
            measured("bare ASGI answer that parses and adds", "bare"),
            ["ratio: HTTP to bare"] + [ratio(loads["HTTP"][n]["ratios"]) for n in TRITON],
            ["a Triton 2.51 with a Python backend, other machine"]
            + [between(runs, ",") for *runs, _ in TRITON.values()],
            ["bare, on that machine"] + [f"{bare:,}" for *_, bare in TRITON.values()],
            ["ratio: that Triton to bare, worst and best run"]
            + [
                f"x{between([run / bare for run in runs], '.2f')}"
                for *runs, bare in TRITON.values()
            ],
        ],
    )


def mlperf(report: dict[str, Any]) -> str:
    """Scenarios of MLPerf by model, and the published rows of CPUs; a figure for each precision."""
    models: dict[str, list[dict[str, Any]]] = {}
    for name, runs in report["runs"].items():
        models.setdefault(name.split()[0], []).append(runs)
    rows = []
    for model, precisions in models.items():
        cells = [
            ", ".join(f"{runs[scenario]['figure']['value']:,.1f}" for runs in precisions)
            for scenario in SCENARIOS
        ]
        spent_ms = [runs["Offline"]["cpu_ms"] for runs in precisions]
        cpu_s = ", ".join(f"{1e-3 * (ms['server'] + ms['load']):.3f}" for ms in spent_ms)
        rows.append([model, *cells, cpu_s])
    rows += [
        [f"published, {machine}", f"{lone:.1f}", "-", f"{images:.2f}", f"{cores / images:.2f}"]
        for machine, (cores, lone, images) in PUBLISHED.items()
    ]
    head = ["", "SingleStream p90, ms", "MultiStream p99, ms", "Offline, images/s"]
    return markdown([*head, "core-seconds an image"], rows)


def peers(report: dict[str, Any]) -> str:
    """Other servers as ratios to Fovea, by the number of clients; the rest is with the most."""
    servers: dict[str, dict[str, dict[str, list[float]]]] = report["servers"]
    own = next(iter(servers.values()))
    rows = []
    for name, loads in servers.items():
        most = [*loads.values()][-1]
        ratios = [
            [one / other for one, other in zip(found["rates"], own[clients]["rates"], strict=True)]
            for clients, found in loads.items()
        ]
        cells = ["1" if loads is own else ratio(rounds) for rounds in ratios]
        cpu_ms, memory_mb = (statistics.median(most[each]) for each in ("cpu_ms", "memory_mb"))
        rate = f"{statistics.median(most['rates']):.1f}"
        rows.append([name, *cells, rate, f"{cpu_ms:,.0f}", f"{memory_mb:,.0f}"])
    loads = [f"{clients} client{'s' * (clients != '1')}" for clients in own]
    return markdown(["", *loads, "images/s", "CPU ms an image", "memory, MB"], rows)


if __name__ == "__main__":
    print(tasks(), precision(), triton(), ray_front(), serve(), sep="\n\n")
