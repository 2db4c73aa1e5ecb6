"""One measurement of a setting, and which of several are best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from fovea_bench.tune.setting import Setting


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement.

    Attributes:
        rate: answers a second.
        p99_ms: of their latencies; infinite without answers.
        failure: reason why it does not count: errors, or a model that does not load.
    """

    setting: Setting
    clients: int
    rate: float
    p99_ms: float
    failure: str | None = None

    def better(self, other: Run, limit_ms: float) -> bool:
        """Return True if this is the better one; where both miss the limit, the nearer one is."""
        if (own := self.within(limit_ms)) != other.within(limit_ms):
            return own
        return self.rate > other.rate if own else self.p99_ms < other.p99_ms

    def within(self, limit_ms: float) -> bool:
        """Return True if its latency is within a limit."""
        return self.failure is None and self.p99_ms <= limit_ms

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""
        return {
            "setting": asdict(self.setting),
            "clients": self.clients,
            "rate": round(self.rate, 3),
            "p99_ms": round(self.p99_ms, 3) if self.rate else None,
            "failure": self.failure,
        }


Measure = Callable[[Setting, int, bool], Run]
"""Measures a setting with a number of clients; True for longer than usual."""


def mean_run(runs: Sequence[Run]) -> Run:
    """Average runs of the same setting."""
    failure = next((run.failure for run in runs if run.failure is not None), None)
    rate, p99_ms = (fmean(getattr(run, name) for run in runs) for name in ("rate", "p99_ms"))
    return replace(runs[0], rate=rate, p99_ms=p99_ms, failure=failure)


def frontier(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs that no other beats in both rate and latency, by ascending latency."""
    most = 0.0
    for run in sorted(runs, key=lambda run: (run.p99_ms, -run.rate)):
        if run.failure is None and run.rate > most:
            most = run.rate
            yield run
