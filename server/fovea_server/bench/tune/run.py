"""Measurements of settings, their medians, and comparisons between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from fovea_server.bench.tune.setting import Setting


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement, or the median of several measurements with the same setting and load.

    Attributes:
        setting: the setting.
        clients: number of clients.
        rate: responses per second.
        p99_ms: 99th percentile of the latency in milliseconds; infinite if there are no responses.
        failure: the reason why the run does not count: errors in responses, or a model that does
            not load; None if the run counts.
        long: True for a longer run that decides which setting is best.
        taken_cores: mean number of cores that other programs used during the run.
        repeats: the measurements from which the median was computed; empty for a single
            measurement.
    """

    setting: Setting
    clients: int
    rate: float
    p99_ms: float
    failure: str | None = None
    long: bool = False
    taken_cores: float = 0.0
    repeats: tuple[Run, ...] = ()

    @property
    def rates(self) -> tuple[float, float]:
        """The lowest and the highest rate of the measurements."""
        rates = [run.rate for run in self.repeats or (self,)]
        return min(rates), max(rates)

    @property
    def p99s_ms(self) -> tuple[float, float]:
        """The lowest and the highest 99th percentile of the measurements."""
        latencies = [run.p99_ms for run in self.repeats or (self,)]
        return min(latencies), max(latencies)

    def beats(self, other: Run) -> bool:
        """Return whether this run beats another run.

        A run beats another run if it is at least as good in rate and latency, and better in one of
        them.
        """
        own, its = (self.rate, -self.p99_ms), (other.rate, -other.p99_ms)
        return own != its and own[0] >= its[0] and own[1] >= its[1]

    def better(self, other: Run, limit_ms: float) -> bool:
        """Return whether this run is better than another run.

        A run within the limit is better than a run that exceeds it. If both are within the limit,
        the higher rate is better; if both exceed it, the lower latency is better.
        """
        if (own := self.within(limit_ms)) != other.within(limit_ms):
            return own
        return self.rate > other.rate if own else self.p99_ms < other.p99_ms

    def within(self, limit_ms: float) -> bool:
        """Return whether the run succeeded with a latency of at most `limit_ms`."""
        return self.failure is None and self.p99_ms <= limit_ms

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain JSON types."""
        return {
            "setting": asdict(self.setting),
            "clients": self.clients,
            "rate": round(self.rate, 3),
            "p99_ms": round(self.p99_ms, 3) if self.rate else None,
            "failure": self.failure,
            "long": self.long,
            "taken_cores": round(self.taken_cores, 2),
            "repeats": max(1, len(self.repeats)),
            "rates": [round(rate, 3) for rate in self.rates],
        }


Measure = Callable[[Setting, int, bool], Run]
"""Measures a setting with a number of clients.

The third argument is True for a longer run.
"""


def fold(runs: Sequence[Run]) -> Run:
    """Return the median of runs that have the same setting and load."""
    failure = next((run.failure for run in runs if run.failure is not None), None)
    rate, p99_ms = (median(getattr(run, name) for run in runs) for name in ("rate", "p99_ms"))
    taken = fmean(run.taken_cores for run in runs)
    typical = replace(runs[0], rate=rate, p99_ms=p99_ms, failure=failure, taken_cores=taken)
    return replace(typical, repeats=tuple(runs))


def fold_all(runs: Sequence[Run]) -> list[Run]:
    """Return the median of the runs for each setting and load.

    If a setting and load has long runs, its short runs are left out.
    """
    groups: dict[tuple[Setting, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.setting, run.clients), []).append(run)
    return [fold([run for run in own if run.long] or own) for own in groups.values()]


def fold_compared(runs: Sequence[Run], best: Run, limit_ms: float) -> list[Run]:
    """Return one run for each setting.

    This is the run under the same load as the best run. If there is none, it is the setting's own
    best run.
    """
    good = [run for run in fold_all(runs) if run.failure is None]
    same = {run.setting: run for run in good if run.clients == best.clients}
    others: dict[Setting, Run] = {}
    for run in good:
        known = others.get(run.setting)
        if known is None or run.better(known, limit_ms):
            others[run.setting] = run
    return list((others | same | {best.setting: best}).values())


def frontier(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs that no other run beats, by ascending latency; see `Run.beats`."""
    good = [run for run in runs if run.failure is None]
    for run in sorted(good, key=lambda run: (run.p99_ms, -run.rate)):
        if not any(other.beats(run) for other in good):
            yield run
