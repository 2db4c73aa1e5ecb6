"""Searches settings for the most answers a second within a limit on the latency.

Two facts keep it short. In closed loop the mean latency is the number of clients over the rate
(Little's law), so at one number of clients the fastest setting is also the one with the lowest
latency, and settings can be compared at one load. And from one measured latency, the load that the
limit allows is known nearly. So: find the load, change one setting at a time for the better, look
again at the load, and in the end measure the best for longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fovea_server.bench.tune.run import Measure, Run, fold
from fovea_server.bench.tune.setting import Setting

# A gain under the first is noise; one under the second counts only if each round shows it.
_GAIN, _CLEAR = 1.02, 1.1
# A version that loses by this much is not tried again with other settings.
_HOPELESS = 0.8
# Settings so close to the best are measured again in the end, for longer, so many at most.
_CLOSE = 0.85
_FINALISTS = 4
# They run in turn, so often: what does not win each time may owe it to noise.
_ROUNDS = 3
# How far over what Little's law allows a load is tried: what runs in parallel may not wait yet.
_SLACK = 2.0
_FEWEST_RUNS = 14
# Two settings in turn, and again under less load.
_LAST_RUNS = 2 * _ROUNDS + 2
# In the order of their usual effect.
_COORDINATES = ("version", "streams", "threads", "max_batch", "delay_us")


@dataclass(slots=True)
class Search:
    """A search over a grid.

    Attributes:
        settings: of the grid.
        clients: numbers of clients, ascending: the loads of the grid.
        limit_ms: largest 99th percentile of the latency; infinite for none.
        measure: does a run.
        runs: all that were done.
        lasts: estimates the seconds of a run, by whether it is a long one.
        until: when it ends, on the monotonic clock.
    """

    settings: Sequence[Setting]
    clients: Sequence[int]
    limit_ms: float
    measure: Measure
    runs: list[Run] = field(default_factory=list)
    lasts: Callable[[bool], float] = lambda long: 0.0
    until: float = math.inf

    @property
    def most_runs(self) -> int:
        """A fifth of what an exhaustive search takes; a few where that is less."""
        return max(_FEWEST_RUNS, len(self.settings) * len(self.clients) // 5)

    @property
    def seconds(self) -> float:
        """The time that most runs take, as far as is known now."""
        short = self.most_runs - _LAST_RUNS
        return short * self.lasts(False) + _LAST_RUNS * self.lasts(True)

    def descend(self, start: Setting) -> tuple[Run, Run]:
        """Change one setting at a time for the better, from a start.

        Returns:
            The best, and the start under the same load; the start itself where none is better.
        """
        at = -1 if self.limit_ms == float("inf") else (len(self.clients) - 1) // 2
        best = self._find_load(self._run(start, self.clients[at]))
        while (found := self._step(best)) is not best:
            best = found
        return self._confirm(best, start)

    def _step(self, best: Run) -> Run:
        """Make the first step for the better; return `best` where there is none."""
        for setting in self._neighbours(best):
            if self._left <= 0:
                break
            run = self._run(setting, best.clients)
            if (setting.streams, setting.max_batch) > (
                best.setting.streams,
                best.setting.max_batch,
            ):
                # More at a time pays with more clients only.
                run = self._find_load(run)
            if self._wins(run, best):
                return self._find_load(run)
        return best

    def _neighbours(self, best: Run) -> Iterator[Setting]:
        """Yield the settings to try: other versions, and the next values of each coordinate."""
        for name in _COORDINATES:
            values = sorted({getattr(setting, name) for setting in self.settings})
            at = values.index(getattr(best.setting, name))
            near = [*values[at + 1 : at + 2], *values[max(0, at - 1) : at]]
            if name == "version":
                near = [each for each in values if not self._is_hopeless(each, best)]
            for value in near:
                wanted = replace(best.setting, **{name: value})
                # Not all values go together: the setting that is nearest.
                key = (value, wanted.version)
                fit = [s for s in self.settings if (getattr(s, name), s.version) == key]
                yield from sorted(fit, key=partial(_gaps, wanted))[:1]

    def _is_hopeless(self, version: int, best: Run) -> bool:
        """Return True if a version has lost clearly, under whatever load."""
        rates = [run.rate for run in self.runs if run.setting.version == version]
        others = [run.rate for run in self.runs if run.setting.version == best.setting.version]
        return bool(rates) and max(rates) < _HOPELESS * max(others)

    def _wins(self, run: Run, best: Run) -> bool:
        """Return True if a run is better than the best one, and than the same measured now.

        A machine is not equally fast at all times: what won in a good moment must win again.
        """
        if not self._gains(run, best):
            return False
        again = self._run(best.setting, best.clients, again=True) if self._left > 0 else best
        return self._gains(run, again)

    def _gains(self, run: Run, best: Run, by: float = _GAIN) -> bool:
        """Return True if a run is better than the best one by more than noise."""
        if best.within(self.limit_ms):
            beaten = replace(best, rate=best.rate * by)
        else:
            beaten = replace(best, p99_ms=best.p99_ms / by)
        return run.better(beaten, self.limit_ms)

    def _replaces(self, runs: Sequence[Run], present: Sequence[Run]) -> bool:
        """Return True if a setting won against the present one in turn: each time, or clearly."""
        won = sum(
            one.better(other, self.limit_ms) for one, other in zip(runs, present, strict=True)
        )
        by = _GAIN if won == len(runs) else _CLEAR
        return 2 * won > len(runs) and self._gains(fold(runs), fold(present), by)

    @property
    def _left(self) -> int:
        """Runs that are left before the last ones."""
        runs = self.most_runs - _LAST_RUNS - len(self.runs)
        return min(runs, self._count_affordable(_LAST_RUNS * self.lasts(True), self.lasts(False)))

    def _count_affordable(self, kept: float, each: float) -> int:
        """Count the runs of so many seconds for which there is time, if some is kept."""
        spare = self.until - time.monotonic() - kept
        return int(spare // each) if each and spare < math.inf else self.most_runs

    def _run(
        self, setting: Setting, clients: int, *, long: bool = False, again: bool = False
    ) -> Run:
        for known in self.runs:
            if not (long or again) and (known.setting, known.clients) == (setting, clients):
                return known
        run = replace(self.measure(setting, clients, long), long=long)
        self.runs.append(run)
        return run

    def _find_load(self, run: Run) -> Run:
        """Find the most clients with which a setting keeps to the limit, by way of Little's law.

        Where it keeps to none, settings are compared under the least load.
        """
        low, high = 0, len(self.clients) - 1
        at = self.clients.index(run.clients)
        kept: Run | None = None
        while True:
            if run.within(self.limit_ms):
                low = at + 1
                # More clients with the same rate: more rows for a batch.
                if kept is None or run.rate * _GAIN > kept.rate:
                    kept = run
            else:
                high = at - 1
            if low > high or self._left <= 0:
                return kept or run
            allowed = _SLACK * run.clients * self.limit_ms / max(run.p99_ms, 1e-9)
            fitting = [n for n in range(low, high + 1) if self.clients[n] <= allowed]
            if not fitting and kept is not None:
                return kept
            at = fitting[-1] if fitting else low
            run = self._run(run.setting, self.clients[at])

    def _confirm(self, best: Run, start: Setting) -> tuple[Run, Run]:
        """Measure the best settings for longer, in turn; the start stays where none is better."""
        # Noise may have kept one of these from being the best.
        close = [
            run.setting
            for run in sorted(self.runs, key=lambda run: -run.rate)
            if run.failure is None and run.clients == best.clients
            if run.rate > _CLOSE * best.rate
        ]
        left = self.most_runs - 2 - len(self.runs)
        left = min(left, self._count_affordable(2 * self.lasts(True), self.lasts(True)))
        most = min(_FINALISTS, max(2, left // _ROUNDS))
        finalists = list(dict.fromkeys((start, best.setting, *close)))[:most]
        final, now = self._measure_in_turn(finalists, best.clients, _ROUNDS)
        fewer = [clients for clients in self.clients if clients < final.clients]
        if best.within(self.limit_ms) and not final.within(self.limit_ms) and fewer:
            # A short run was lucky.
            again = list(dict.fromkeys((start, final.setting)))
            final, now = self._measure_in_turn(again, fewer[-1], 1)
        return final, now

    def _measure_in_turn(
        self, settings: Sequence[Setting], clients: int, rounds: int
    ) -> tuple[Run, Run]:
        """Measure settings one after the other, some rounds; return the best, and the first."""
        every: list[list[Run]] = []
        while not every or (
            len(every) < rounds and self._count_affordable(0, self.lasts(True)) >= len(settings)
        ):
            every.append([self._run(each, clients, long=True) for each in settings])
        present, *others = zip(*every, strict=True)
        best = now = fold(present)
        for runs in others:
            own = fold(runs)
            if self._replaces(runs, present) and self._gains(own, best):
                best = own
        return best, now


def _gaps(one: Setting, other: Setting) -> tuple[int, int]:
    """Count the values in which settings differ, and add up by how much."""
    gaps = [abs(getattr(one, name) - getattr(other, name)) for name in _COORDINATES]
    return sum(gap > 0 for gap in gaps), sum(gaps)
