"""Draw docs/images/speed.svg from the newest benchmarks/results, in the style of `bench --plot`.

    python benchmarks/plot.py > docs/images/speed.svg

docs/how-to/speed.md shows it.
"""

from __future__ import annotations

from tables import newest

from fovea_server.bench.chart import Axis, Series, chart, round_ticks

MODELS = ("yolov8n", "yolox_nano")
PRECISIONS = ("fp32", "bf16", "int8")


def speed() -> str:
    """Images/s by the latency of 99 in 100 answers: a curve through 1, 4 and 16 clients."""
    series = []
    for model in MODELS:
        for precision in PRECISIONS:
            levels = newest(f"serve-{model}-{precision}")["http"].values()
            points = [(level["p99_ms"], level["rate"]) for level in levels]
            series.append(Series(f"{model} {precision}", points))
    ends = [max(values) for values in zip(*(p for s in series for p in s.points), strict=True)]
    return chart(
        "1, 4 and 16 clients on two cores",
        Axis("99th percentile of the latency, ms", round_ticks(ends[0])),
        Axis("images/s", round_ticks(ends[1])),
        series,
    )


if __name__ == "__main__":
    print(speed(), end="")
