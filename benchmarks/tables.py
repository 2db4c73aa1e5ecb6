"""Print the tables of README and docs from the newest figures in benchmarks/results.

    python benchmarks/tables.py

One rule holds for all of them. A rate is the median of its rounds. A ratio is taken inside each
round, where both sides are measured in turn: x, its median, and the lowest and highest in brackets.
Accuracy has no leading zero. `tests/architecture/test_readme_tables.py` compares.
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
    """Gain and loss of bfloat16 and INT8, and how fast the choice of `auto` is."""
    accuracies = {
        "fp32": "mAP50-95 FP32",
        "bf16": "mAP bf16",
        "fp16": "mAP FP16",
        "int8": "mAP INT8",
        "int8 for TensorRT": "mAP INT8 for TensorRT",
    }
    rows = []
    for model, found in newest("precision")["models"].items():
        rates = found.get("rates", {n: [rate] for n, rate in found["images_per_s"].items()})
        fp32 = [rounds for name, rounds in rates.items() if name.startswith("fp32")]
        kept = [accuracy(found["map50_95"][name]) for name in accuracies]
        fastest = max(fp32, key=statistics.median)
        gains = [ratio(found["ratios"][name]) for name in ("bf16", "int8")]
        chosen = f"{found['auto'].split()[0]}, {ratio(found['auto_to_best']['ratios'])}"
        rows.append([model, spread(fastest, ".1f"), *gains, chosen, *kept])
    head = ["model", "fastest FP32, images/s", "bf16 to it", "INT8 to it", "`auto` to the best"]
    return markdown([*head, *accuracies.values()], rows)


def tasks() -> str:
    """Accuracy in FP32, FP16 and INT8, a model of each task."""
    detector = newest("precision")["models"]["yolov8n"]["map50_95"]
    models = newest("tasks")["models"]
    judged = [
        ("yolov8n", "mAP50-95 of boxes", detector),
        *(
            (model, title, {p: row[figure] for p, row in models[model].items()})
            for model, title, figure in (
                ("yolov8n-seg-320", "mAP50-95 of masks", "map50_95"),
                ("yolov8n-pose", "keypoints as the source has them, 0 to 1", "agreement"),
                ("mobilenetv2", "images with the same first class as the source", "same_top"),
                ("u2netp", "foreground as the source has it, 0 to 1", "shared"),
            )
        ),
    ]
    precisions = ("fp32", "fp16", "int8")
    return markdown(
        ["model", "judged by", *map(str.upper, precisions)],
        ([name, by, *(accuracy(found[p]) for p in precisions)] for name, by, found in judged),
    )


def accuracy(value: float) -> str:
    """Three digits, without the leading zero."""
    return f"{value:.3f}".removeprefix("0")


def serve() -> str:
    """Images over HTTP, by model and precision: for one client and for a crowd."""
    runs = [(m, p) for m in ("yolov8n", "yolox_nano") for p in ("fp32", "bf16", "int8")]
    loads, rows = ("1", "16"), []
    for model, precision in runs:
        measured = newest(f"serve-{model}-{precision}")["http"]
        rows.append([f"{model} {precision}"])
        for row in map(measured.__getitem__, loads):
            waits = (f"{row[name]:.0f}" for name in ("p50_ms", "p99_ms"))
            rows[-1] += [rate(row, 1), ratio(row["ratios"]), " / ".join(waits)]
    figures = ("images/s", "ratio", "p50 / p99, ms")
    head = [f"{clients} clients: {figures[0]}" for clients in loads]
    head[0] = head[0].replace("clients", "client")
    return markdown(["", *(title for each in head for title in (each, *figures[1:]))], rows)


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


if __name__ == "__main__":
    print(tasks(), precision(), triton(), serve(), sep="\n\n")
