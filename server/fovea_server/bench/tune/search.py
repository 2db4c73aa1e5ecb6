"""Searches for the settings with the highest rate within a limit on the latency.

Two facts keep the search short. First, the mean latency in a closed loop is the number of clients
divided by the rate (Little's law). So for a fixed number of clients, the fastest setting also has
the lowest latency, and settings can be compared under one load. Second, one measured latency
roughly predicts the load for which the latency reaches the limit. So the search finds this load,
improves one field of the setting at a time, adjusts the load, and finally measures the best
settings for longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fovea_server.bench.tune.run import Measure, Run, fold
from fovea_server.bench.tune.setting import Setting

# Smallest factors between two rates or latencies: for a difference that is not noise, and for a
# difference that is accepted even if it does not occur in each round.
_GAIN, _CLEAR = 1.02, 1.1
# A version is not tried with other settings if its best rate is below this fraction of the best
# rate of the best setting's version.
_HOPELESS = 0.8
# Settings whose rate exceeds this fraction of the best rate are finalists: they are measured again
# at the end, for longer. There are at most `_FINALISTS` finalists.
_CLOSE = 0.85
_FINALISTS = 4
# Number of rounds in which the finalists are measured in turn. A setting that wins only some rounds
# may have won by chance.
_ROUNDS = 3
# Factor by which a tried load may exceed the load that Little's law predicts. The law may predict
# too low a load while parallel requests do not wait for each other.
_SLACK = 2.0
_FEWEST_RUNS = 14
# Number of long runs at the end: two settings in each round, and both again under a lower load.
_LAST_RUNS = 2 * _ROUNDS + 2
# Fields of a setting, from the field that usually has the largest effect to the field with the
# smallest.
_COORDINATES = ("version", "streams", "threads", "max_batch", "delay_us")


@dataclass(slots=True)
class Search:
    """A search over a grid of settings and loads.

    Attributes:
        settings: settings of the grid.
        clients: loads of the grid: numbers of clients, ascending.
        limit_ms: limit of the 99th percentile of the latency, in milliseconds; infinite for no
            limit.
        measure: function that measures a setting under a load.
        runs: all runs so far.
        lasts: function that estimates the duration of a run in seconds; its argument is True for a
            long run.
        until: value of `time.monotonic()` at which the search must end.
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
        """Largest number of runs: a fifth of the whole grid, but at least `_FEWEST_RUNS`."""
        return max(_FEWEST_RUNS, len(self.settings) * len(self.clients) // 5)

    @property
    def seconds(self) -> float:
        """Estimated duration of the largest number of runs, in seconds."""
        short = self.most_runs - _LAST_RUNS
        return short * self.lasts(False) + _LAST_RUNS * self.lasts(True)

    def descend(self, start: Setting) -> tuple[Run, Run]:
        """Improve one field of the setting at a time, beginning at `start`.

        Returns:
            The best run, and the run of `start` under the same load. They are the same run if no
            setting is better than `start`.
        """
        at = -1 if self.limit_ms == float("inf") else (len(self.clients) - 1) // 2
        best = self._find_load(self._run(start, self.clients[at]))
        while (found := self._step(best)) is not best:
            best = found
        return self._confirm(best, start)

    def _step(self, best: Run) -> Run:
        """Return the first run that is better than `best`; return `best` if no run is better."""
        for setting in self._neighbours(best):
            if self._left <= 0:
                break
            run = self._run(setting, best.clients)
            if (setting.streams, setting.max_batch) > (
                best.setting.streams,
                best.setting.max_batch,
            ):
                # More parallel calls or larger batches are faster only with more clients, so the
                # load is adjusted first.
                run = self._find_load(run)
            if self._wins(run, best):
                return self._find_load(run)
        return best

    def _neighbours(self, best: Run) -> Iterator[Setting]:
        """Yield the settings to try: other versions, and the neighbouring values of each field."""
        for name in _COORDINATES:
            values = sorted({getattr(setting, name) for setting in self.settings})
            at = values.index(getattr(best.setting, name))
            near = [*values[at + 1 : at + 2], *values[max(0, at - 1) : at]]
            if name == "version":
                near = [each for each in values if not self._is_hopeless(each, best)]
            for value in near:
                wanted = replace(best.setting, **{name: value})
                # The grid may not contain this combination of values. Then the nearest setting in
                # the grid is tried.
                key = (value, wanted.version)
                fit = [s for s in self.settings if (getattr(s, name), s.version) == key]
                yield from sorted(fit, key=partial(_gaps, wanted))[:1]

    def _is_hopeless(self, version: int, best: Run) -> bool:
        """Return whether a version was clearly slower than the version of `best`.

        The best rates of both versions are compared, over all loads.
        """
        rates = [run.rate for run in self.runs if run.setting.version == version]
        others = [run.rate for run in self.runs if run.setting.version == best.setting.version]
        return bool(rates) and max(rates) < _HOPELESS * max(others)

    def _wins(self, run: Run, best: Run) -> bool:
        """Return whether a run is better than the best run and than a repetition of the best run.

        The speed of a machine varies, so the best setting is measured again before it is replaced.
        """
        if not self._gains(run, best):
            return False
        again = self._run(best.setting, best.clients, again=True) if self._left > 0 else best
        return self._gains(run, again)

    def _gains(self, run: Run, best: Run, by: float = _GAIN) -> bool:
        """Return whether a run is better than the best run by a factor of more than `by`."""
        if best.within(self.limit_ms):
            beaten = replace(best, rate=best.rate * by)
        else:
            beaten = replace(best, p99_ms=best.p99_ms / by)
        return run.better(beaten, self.limit_ms)

    def _replaces(self, runs: Sequence[Run], present: Sequence[Run]) -> bool:
        """Return whether a setting replaces the present setting.

        A setting replaces the present one if it is better in every round. It also does if it is
        better in most rounds and clearly better in the median.
        """
        won = sum(
            one.better(other, self.limit_ms) for one, other in zip(runs, present, strict=True)
        )
        by = _GAIN if won == len(runs) else _CLEAR
        return 2 * won > len(runs) and self._gains(fold(runs), fold(present), by)

    @property
    def _left(self) -> int:
        """Number of runs that may still be made before the long runs at the end."""
        runs = self.most_runs - _LAST_RUNS - len(self.runs)
        return min(runs, self._count_affordable(_LAST_RUNS * self.lasts(True), self.lasts(False)))

    def _count_affordable(self, kept: float, each: float) -> int:
        """Return the number of runs of `each` seconds that fit into the remaining time.

        `kept` seconds of the remaining time are reserved for other runs.
        """
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
        """Find the most clients for which the latency of a setting is within the limit.

        The loads to try are predicted by Little's law. If no load is within the limit, return the
        run with the last tried load.
        """
        low, high = 0, len(self.clients) - 1
        at = self.clients.index(run.clients)
        kept: Run | None = None
        while True:
            if run.within(self.limit_ms):
                low = at + 1
                # A load with more clients is kept only if the rate is higher. At the same rate,
                # more clients only make larger batches.
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
        """Measure the best settings for longer, in turn.

        Return the best run, and the run of `start` under the same load.
        """
        # One of these settings may be faster than the best setting so far, because measurements
        # vary.
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
            # The short run was within the limit, but the long run is not, so a lower load is
            # measured.
            again = list(dict.fromkeys((start, final.setting)))
            final, now = self._measure_in_turn(again, fewer[-1], 1)
        return final, now

    def _measure_in_turn(
        self, settings: Sequence[Setting], clients: int, rounds: int
    ) -> tuple[Run, Run]:
        """Measure settings in turn, for some rounds.

        Returns:
            The run of the best setting, and the run of the first setting, each as the median of its
            rounds.
        """
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
    """Return the number of fields in which two settings differ, and the sum of the differences."""
    gaps = [abs(getattr(one, name) - getattr(other, name)) for name in _COORDINATES]
    return sum(gap > 0 for gap in gaps), sum(gaps)
