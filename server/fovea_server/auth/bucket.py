"""A token bucket: how many images a key may still send."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fovea_preprocess.errors import RateLimited
from fovea_server.auth.key import Rate
from fovea_server.auth.quota import Meter
from fovea_server.traffic.principal import Principal

# The longest queue of refused clients that a wait counts in.
_MAX_BEHIND_S = 30.0


@dataclass(frozen=True, slots=True)
class LimitedPrincipal(Principal):
    """A holder, and what is left of its limits.

    Attributes:
        bucket: of the rate; None without one.
        meter: of the quota; None without one.
    """

    bucket: TokenBucket | None = None
    meter: Meter | None = None

    def charge(self, images: int) -> None:
        """Count images; RateLimited if the rate or the quota has no room for them."""
        if self.bucket is not None:
            self.bucket.take(images)
        if self.meter is not None:
            self.meter.take(images)


class TokenBucket:
    """Fills at a rate, up to its burst; on the event loop only.

    A request that costs more than the burst is taken from a full bucket, and the next ones wait
    until what it owes is there again: else it could never be answered.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._left, self._at = rate.burst, clock()
        # When the last one that was refused may come back.
        self._last = self._at

    @property
    def left(self) -> float:
        """The images that it has room for now."""
        now = self._clock()
        self._left = min(self.rate.burst, self._left + (now - self._at) * self.rate.per_s)
        self._at = now
        return self._left

    def take(self, cost: int) -> None:
        """Take the cost of a request; RateLimited says when there is room for it."""
        needed = min(float(cost), self.rate.burst)
        # Sums of floats may lack a billionth of what was waited for.
        if (lacking := needed - self.left) > 1e-9:
            wait_s = lacking / self.rate.per_s
            # Those that were refused before come first; who does not wait makes nobody wait long.
            behind_s = self._last - self._at + needed / self.rate.per_s
            if behind_s < _MAX_BEHIND_S:
                wait_s = max(wait_s, behind_s)
            self._last = self._at + wait_s
            raise RateLimited(
                f"this key may send {self.rate.text} images: send again in {wait_s:.2f} s",
                wait_s,
            )
        self._left -= cost
