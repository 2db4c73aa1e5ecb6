"""Searches settings for the most answers a second within a limit on the latency.

Two facts keep it short. In closed loop the mean latency is the number of clients over the rate
(Little's law), so at one number of clients the fastest setting is also the one with the lowest
latency, and settings can be compared at one load. And from one measured latency, the load that the
limit allows is known nearly. So: find the load, change one setting at a time for the better, look
again at the load, and in the end measure the best for longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fovea_server.tune.run import Measure, Run, mean_run
from fovea_server.tune.setting import Setting

# Less is noise.
_GAIN = 1.02
# A version that loses by this much is not tried again with other settings.
_HOPELESS = 0.8
# Settings so close to the best are measured again, for longer, and so many times at most.
_CLOSE = 0.85
_FINALISTS = 4
_ROUNDS = 3
# Values in which a near setting differs.
_NEAR = 2
# How far over what Little's law allows a load is tried.
_SLACK = 1.25
_FEWEST_RUNS = 12
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
        now: a run of the start of `descend`, with the clients of the best; None before.
    """

    settings: Sequence[Setting]
    clients: Sequence[int]
    limit_ms: float
    measure: Measure
    runs: list[Run] = field(default_factory=list)
    now: Run | None = None

    @property
    def most_runs(self) -> int:
        """A fifth of what an exhaustive search takes; a few where that is less."""
        return max(_FEWEST_RUNS, len(self.settings) * len(self.clients) // 5)

    def exhaust(self) -> Run:
        """Measure every setting under every load; return the best run."""
        return self._best([self._run(s, c) for s in self.settings for c in self.clients])

    def descend(self, start: Setting) -> Run:
        """Change one setting at a time for the better, from a start; return the best run."""
        best = self._loaded(self._run(start, self._first_clients()))
        while (found := self._stepped(best)) is not best:
            best = found
        return self._confirmed(best, start)

    def _stepped(self, best: Run) -> Run:
        """Make the first step for the better: along one coordinate, else to a near setting."""
        for name in _COORDINATES:
            if (found := self._along(name, best)) is not best:
                return self._loaded(found)
        for setting in self._near(best.setting):
            if self._left <= 0:
                break
            found = self._run(setting, best.clients)
            if found.rate < _HOPELESS * best.rate or found.failure is not None:
                continue
            # Batches pay under another load than single images.
            if self._wins(found := self._loaded(found), best):
                return found
        return best

    def _near(self, setting: Setting) -> list[Setting]:
        """List the settings of a version that differ in one or two values, the nearest first."""
        known = [s for s in self.settings if s.version == setting.version and s != setting]
        near = [s for s in known if _gaps(s, setting)[0] <= _NEAR]
        return sorted(near, key=lambda other: _gaps(other, setting))

    def _wins(self, run: Run, best: Run) -> bool:
        """Return True if a run is better than the best one, and than the same measured now.

        A machine is not equally fast at all times: what won in a good moment must win again.
        """
        if not self._gains(run, best):
            return False
        again = self._run(best.setting, best.clients, again=True) if self._left > 0 else best
        return self._gains(run, again)

    def _gains(self, run: Run, best: Run) -> bool:
        """Return True if a run is better than the best one by more than noise."""
        if best.within(self.limit_ms):
            beaten = replace(best, rate=best.rate * _GAIN)
        else:
            beaten = replace(best, p99_ms=best.p99_ms / _GAIN)
        return run.better(beaten, self.limit_ms)

    @property
    def _left(self) -> int:
        """Runs that are left before the last ones."""
        return self.most_runs - _FINALISTS - len(self.runs)

    def _first_clients(self) -> int:
        if self.limit_ms == float("inf"):
            return self.clients[-1]
        return self.clients[(len(self.clients) - 1) // 2]

    def _run(
        self, setting: Setting, clients: int, *, long: bool = False, again: bool = False
    ) -> Run:
        for known in self.runs:
            if not (long or again) and (known.setting, known.clients) == (setting, clients):
                return known
        run = self.measure(setting, clients, long)
        self.runs.append(run)
        return run

    def _loaded(self, run: Run) -> Run:
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

    def _along(self, name: str, best: Run) -> Run:
        """Try other values of one setting under the load of the best run; return the better."""
        values = sorted({getattr(setting, name) for setting in self.settings})
        if name == "version":
            for value in values:
                if not self._hopeless(value, best):
                    best = self._tried(name, value, best)
            return best
        for direction in (1, -1):
            start = best
            at = values.index(getattr(best.setting, name)) + direction
            while 0 <= at < len(values):
                found = self._tried(name, values[at], best)
                if found is best:
                    break
                best, at = found, at + direction
            if best is not start:
                break
        return best

    def _tried(self, name: str, value: int, best: Run) -> Run:
        setting = self._fitted(name, replace(best.setting, **{name: value}))
        if setting is None or setting == best.setting or self._left <= 0:
            return best
        run = self._run(setting, best.clients)
        return run if self._wins(run, best) else best

    def _fitted(self, name: str, wanted: Setting) -> Setting | None:
        """Find the setting of the grid that is nearest to one, with the changed value in it."""
        value, version = getattr(wanted, name), wanted.version
        known = (s for s in self.settings if (getattr(s, name), s.version) == (value, version))
        return min(known, key=lambda other: _gaps(other, wanted), default=None)

    def _hopeless(self, version: int, best: Run) -> bool:
        """Return True if a version has lost clearly, under whatever load."""
        rates = [run.rate for run in self.runs if run.setting.version == version]
        others = [run.rate for run in self.runs if run.setting.version == best.setting.version]
        return bool(rates) and max(rates) < _HOPELESS * max(others)

    def _confirmed(self, best: Run, start: Setting) -> Run:
        """Measure the best settings for longer, in turn; the first stays where none is better."""
        rounds: list[list[Run]] = []
        finalists = self._finalists(best, start)
        while len(rounds) < _ROUNDS and (
            not rounds or len(self.runs) + len(finalists) <= self.most_runs
        ):
            rounds.append([self._run(f.setting, f.clients, long=True) for f in finalists])
        self.now, *others = map(mean_run, zip(*rounds, strict=True))
        final = self.now
        for run in others:
            final = run if self._gains(run, final) else final
        fewer = [clients for clients in self.clients if clients < final.clients]
        if best.within(self.limit_ms) and not final.within(self.limit_ms) and fewer:
            # A short run was lucky.
            final = self._run(final.setting, fewer[-1], long=True)
        return final

    def _finalists(self, best: Run, start: Setting) -> list[Run]:
        """Choose the start, the best run, and those that noise may have kept from being it."""
        by_setting: dict[Setting, Run] = {}
        for run in sorted(self.runs, key=lambda run: run.rate):
            if run.failure is None and run.clients == best.clients:
                by_setting[run.setting] = run
        close = [run for run in by_setting.values() if run.rate > _CLOSE * best.rate]
        close.sort(key=lambda run: -run.rate)
        chosen = {start: replace(best, setting=start), best.setting: best}
        for run in close:
            chosen.setdefault(run.setting, run)
        return list(chosen.values())[:_FINALISTS]

    def _best(self, runs: Sequence[Run]) -> Run:
        best, *others = runs
        for run in others:
            if run.better(best, self.limit_ms):
                best = run
        return best


def _gaps(one: Setting, other: Setting) -> tuple[int, int]:
    """Count the values in which settings differ, and add up by how much."""
    gaps = [abs(getattr(one, name) - getattr(other, name)) for name in _COORDINATES]
    return sum(gap > 0 for gap in gaps), sum(gaps)
