"""Shows the measurements under each level of load, while they are made and at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from fovea_server.bench.chart import Axis, Series, chart, round_ticks
from fovea_server.bench.level import PERCENTILES, Level

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Fraction of a core above which the load generator is so busy that it may send requests late.
_BUSY = 0.8
_LATE_MS = 5.0
# Width in columns of a table that is written to a file or pipe.
_WIDE = 200
# Ticks of the percentile axis of the plot, in percent.
_PERCENTS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_POINTS = 200


class LiveLevels:
    """Shows measurements on stderr: as a table on a terminal, otherwise as a line for each level.

    Args:
        kind: unit in which responses are counted, "images" or "requests".
    """

    def __init__(self, kind: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._kind = kind
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=True, refresh_per_second=4)
        self._written = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show_message(self, text: str) -> None:
        """Show a message about the current step, before there are measurements."""
        if self._console.is_terminal:
            self._live.update(text)
        else:
            self._console.print(text, markup=False, soft_wrap=True)

    def show(self, levels: Sequence[Level]) -> None:
        """Show the levels; the measurement of the last level may be incomplete."""
        if self._console.is_terminal:
            self._live.update(_figures(self._kind, levels))
        elif levels[-1].complete and len(levels) > self._written:
            self._written = len(levels)
            level = levels[-1]
            p99 = _figure(level.telling_ms(99), 1)
            line = f"{level.title}: {level.rate:.1f} {self._kind}/s, p99 {p99} ms"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def show(title: str, kind: str, levels: Sequence[Level]) -> None:
    """Print tables of levels, with notes, on stdout."""
    from rich.text import Text

    console = uncut_console()
    console.print(Text(title, style="bold"))
    console.print(_figures(kind, levels))
    if any(level.stages for level in levels):
        console.print(_stages(levels))
    console.print(_cores(levels))
    for note in _notes(levels):
        console.print(Text(note), soft_wrap=True)


def uncut_console() -> Console:
    """Return a console for stdout; tables are cut only if stdout is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    return console


def _figures(kind: str, levels: Iterable[Level]) -> Table:
    percentiles = (f"p{percentile} ms" for percentile in PERCENTILES)
    table = _table("load", f"{kind}/s", *percentiles, "max ms", "errors")
    metric = next((level.accuracy.metric for level in levels if level.accuracy), None)
    if metric is not None:
        table.add_column(metric, justify="right")
    for level in levels:
        cells = [
            level.title if level.complete else f"{level.title}, {level.sample.seconds:.0f} s",
            f"{level.rate:.1f}",
            *(_figure(level.telling_ms(percentile), 1) for percentile in PERCENTILES),
            _figure(level.latency_ms(100), 1),
            str(level.failed or "-"),
        ]
        if metric is not None:
            cells.append(_figure(None if level.accuracy is None else level.accuracy.figure, 3))
        table.add_row(*cells)
    return table


def _stages(levels: Sequence[Level]) -> Table:
    names = list(dict.fromkeys(name for level in levels for name in level.stages))
    table = _table("mean ms", *names)
    for level in levels:
        table.add_row(level.title, *(_figure(level.stages.get(name), 2) for name in names))
    return table


def _cores(levels: Iterable[Level]) -> Table:
    table = _table(
        "cores used", "by the server", "CPU ms per answer", "by the load", "rows per batch"
    )
    for level in levels:
        used = level.server_cpu
        spent_ms = 1e3 * used / level.rate if used and level.rate else None
        cells = (_figure(used, 2), _figure(spent_ms, 2), _figure(level.generator_cpu, 2))
        table.add_row(level.title, *cells, _figure(level.batch, 1))
    return table


def _notes(levels: Iterable[Level]) -> Iterable[str]:
    for level in levels:
        for (status, code), (count, message) in level.sample.errors.items():
            yield f"{level.title}: {count} x {status or ''} {code}: {message}".replace("  ", " ")
        answers = len(level.sample.latencies)
        if answers and level.telling_ms(PERCENTILES[-1]) is None:
            yield (
                f"{level.title}: {answers} responses are too few for p{PERCENTILES[-1]}, which "
                "needs 100: measure longer with --seconds"
            )
        if level.accuracy_missing:
            yield (
                f"{level.title}: the accuracy excludes {level.accuracy_missing} labelled images, "
                "because they failed"
            )
        if level.generator_cpu > _BUSY:
            yield (
                f"{level.title}: the load generator used {level.generator_cpu:.2f} cores, so it "
                "limits the rate: run bench on several machines, with the --url of one server"
            )
        late_ms = level.late_p99_ms
        if late_ms is not None and late_ms > _LATE_MS:
            yield f"{level.title}: 1 % of the requests were sent at least {late_ms:.0f} ms late"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def draw(title: str, levels: Sequence[Level]) -> str | None:
    """Draw a curve of latency percentiles for each level, as SVG; None if there are no responses.

    The axis of percentiles is logarithmic towards 100 %, to show the slow responses, as in Gil
    Tene's HdrHistogram. A curve ends at its slowest response.
    """
    answered = [level for level in levels if level.sample.latencies]
    if not answered:
        return None
    series = [Series(level.title, _curve(level)) for level in answered]
    end = max(nines for one in series for nines, _ in one.points)
    # The axis ends at the first tick beyond all curves, but not before 99 %.
    percents = [*_PERCENTS[:4], *(p for p in _PERCENTS[4:] if _nines(p) < end + 1)]
    most_ms = max(ms for one in series for _, ms in one.points)
    nines = [_nines(percent) for percent in percents]
    return chart(
        title,
        Axis("percent of responses", nines, [f"{percent:g} %" for percent in percents]),
        Axis("latency, ms", round_ticks(most_ms)),
        series,
    )


def _curve(level: Level) -> list[tuple[float, float]]:
    # The slowest response is the percentile 100 %, which is infinitely far away on this axis. So a
    # curve of n responses ends at the percentile 100 (1 - 1/n).
    end = min(_nines(_PERCENTS[-1]), math.log10(len(level.sample.latencies)))
    nines = np.linspace(0, end, _POINTS)
    found = np.percentile(level.sample.latencies, 100 * (1 - 10**-nines), method="higher")
    return list(zip(nines.tolist(), (1e3 * found).tolist(), strict=True))


def _nines(percent: float) -> float:
    """Return the position of a percentile on the axis.

    The position is the number of nines in the percentile: 1 for 90, 2 for 99.
    """
    return -math.log10(1 - percent / 100)
