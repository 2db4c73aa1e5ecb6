"""Draws the latencies of levels of load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fovea_server.bench.chart import Axis, Series, chart, log_ticks
from fovea_server.bench.level import Level

_PERCENTILES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_POINTS = 200


def latency_chart(title: str, levels: Sequence[Level]) -> str | None:
    """Draw a curve of percentiles for each level, as SVG; None where nothing was answered.

    The axis of percentiles is stretched towards 100, where the slow answers are (as Gil Tene's
    HdrHistogram draws it); a curve ends where it has no further answer.
    """
    answered = [level for level in levels if level.sample.latencies]
    if not answered:
        return None
    series = [Series(level.title, _curve(level)) for level in answered]
    most = max(len(level.sample.latencies) for level in answered)
    last = next((p for p in _PERCENTILES[3:] if (1 - p / 100) * most <= 1), _PERCENTILES[-1])
    ticks = [p for p in _PERCENTILES if p <= last]
    latencies = [ms for one in series for _, ms in one.points]
    return chart(
        title,
        Axis("percent of the answers", ticks, _nines, "{:g} %".format),
        Axis("latency, ms", log_ticks(min(latencies), max(latencies)), math.log10),
        series,
    )


def _curve(level: Level) -> list[tuple[float, float]]:
    count = len(level.sample.latencies)
    # The last answer has no answer beyond it, and the axis has no end.
    end = min(_nines(_PERCENTILES[-1]), math.log10(count)) if count > 1 else 0.0
    percentiles = 100 * (1 - 10 ** -np.linspace(0, end, _POINTS))
    found = np.percentile(level.sample.latencies, percentiles, method="higher")
    return list(zip(percentiles.tolist(), (1e3 * found).tolist(), strict=True))


def _nines(percent: float) -> float:
    """Count the nines of a percentile: 90 has one, 99 two."""
    return -math.log10(1 - min(percent, 99.9999) / 100)
