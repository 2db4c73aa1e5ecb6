"""A token bucket: how many images a key may send now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fovea_preprocess.errors import RateLimited
from fovea_server.auth.key import Rate
from fovea_server.auth.quota import Meter
from fovea_server.traffic.principal import Principal

# Longest queue of rejected requests, in seconds, that the suggested wait takes into account.
_MAX_BEHIND_S = 30.0


@dataclass(frozen=True, slots=True)
class LimitedPrincipal(Principal):
    """A principal with the remainder of its limits.

    Attributes:
        bucket: token bucket of the rate limit; None without a rate limit.
        meter: counter of the quota; None without a quota.
    """

    bucket: TokenBucket | None = None
    meter: Meter | None = None

    def charge(self, images: int) -> None:
        """Count images.

        Raises:
            RateLimited: the images exceed the rate limit or the quota.
        """
        if self.bucket is not None:
            self.bucket.take(images)
        if self.meter is not None:
            self.meter.take(images)


class TokenBucket:
    """A token bucket that holds at most `rate.burst` tokens. Use it on the event loop only.

    A request that costs more than the burst takes all tokens of a full bucket. It could never be
    accepted otherwise.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._left, self._at = rate.burst, clock()
        # Time at which the last rejected request may be sent again, by `clock`.
        self._last = self._at

    @property
    def left(self) -> float:
        """Return the number of images that may be sent now."""
        now = self._clock()
        self._left = min(self.rate.burst, self._left + (now - self._at) * self.rate.per_s)
        self._at = now
        return self._left

    def take(self, cost: int) -> None:
        """Take the cost of a request, at most the burst.

        Raises:
            RateLimited: the bucket has too few tokens. The error has the time to wait.
        """
        needed = min(float(cost), self.rate.burst)
        # Rounding errors may leave a billionth too little after the suggested wait.
        if (lacking := needed - self.left) > 1e-9:
            wait_s = lacking / self.rate.per_s
            # Earlier rejected requests go first. A client that never retries delays others by at
            # most `_MAX_BEHIND_S`.
            behind_s = self._last - self._at + needed / self.rate.per_s
            if behind_s < _MAX_BEHIND_S:
                wait_s = max(wait_s, behind_s)
            self._last = self._at + wait_s
            raise RateLimited(
                f"this key may send {self.rate.text} images: retry in {wait_s:.2f} s",
                wait_s,
            )
        self._left -= cost
