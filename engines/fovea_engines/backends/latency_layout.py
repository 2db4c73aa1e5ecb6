"""Chooses the layout of lone calls by what they take as they go."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

# Weight of a call in the smoothed time of its layout.
_SMOOTHING = 0.25
# Wide has become slow when it takes so many times what it took at its fastest.
_SLOW = 1.2
# Seconds from a trial of the other layout to the next one: so many that trials cost a fiftieth of
# the time, but not over .8 s unless they would then cost more than a twenty-fifth.
_SOONEST_S, _SOON_S = 0.25, 0.8
_COST, _MAX_COST = 0.02, 0.04
# The first call after a change finds cold caches and memory that was released: it tells nothing.
# But a wide call that takes so many times what a narrow one does, and so many seconds more, is
# slower when it is warm, too: beside no neighbour it takes about half as long as a narrow one.
_TRIAL_CALLS = 2
_CLEAR, _CLEAR_S = 1.25, 0.02


@dataclass(slots=True)
class LatencyLayout:
    """The layout of lone calls on inputs of the same shapes: wide, or narrow where that is faster.

    The threads of a wide call wait for each other at the end of each layer, so a core that somebody
    else needs slows all of it. After one first trial, narrow is tried only once wide has become
    slow; until then its memory stays released. While narrow is the faster one, wide has a trial
    every .8 s or sooner, and later only where calls are so long that the trial would cost a
    twenty-fifth of the time.

    Threads may overwrite each other's measurements; the next call corrects that.
    """

    wide: bool = True
    _seconds: dict[bool, float] = field(default_factory=lambda: {True: inf, False: inf})
    _fastest_s: float = inf
    _trial_at: float = inf
    _calls_left: int = 0

    def next(self, now: float) -> bool:
        """Return True if the next call is to be wide; `now` is in seconds of a monotonic clock."""
        if not self._calls_left and now >= self._trial_at and self._is_doubtful():
            self._calls_left = _TRIAL_CALLS
        return self.wide != bool(self._calls_left)

    def _is_doubtful(self) -> bool:
        narrow_s = self._seconds[False]
        return not self.wide or narrow_s == inf or self._seconds[True] > _SLOW * self._fastest_s

    def learn(self, wide: bool, seconds: float, now: float) -> None:
        """Record what a call took."""
        if self._trial_at == inf:
            self._trial_at = now + _SOONEST_S
        if wide != self.wide:
            self._calls_left = max(0, self._calls_left - 1)
            narrow_s = self._seconds[False]
            is_slower = wide and seconds > max(_CLEAR * narrow_s, narrow_s + _CLEAR_S)
            if is_slower or not self._calls_left:
                self._judge(wide, seconds, now)
            return
        known = self._seconds[wide]
        self._seconds[wide] = seconds if known == inf else known + _SMOOTHING * (seconds - known)
        if wide:
            self._fastest_s = min(self._fastest_s, self._seconds[wide])

    def _judge(self, wide: bool, seconds: float, now: float) -> None:
        calls, self._calls_left = _TRIAL_CALLS - self._calls_left, 0
        lost_s = calls * (seconds - self._seconds[self.wide])
        self._trial_at = now + max(_SOONEST_S, min(lost_s / _COST, _SOON_S), lost_s / _MAX_COST)
        self._seconds[wide] = seconds
        if lost_s < 0:
            self.wide = wide
