"""A token bucket: limits the rate of the images that a key sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fovea_preprocess.errors import RateLimited
from fovea_server.auth.key import Rate
from fovea_server.auth.quota import Meter
from fovea_server.traffic.principal import Principal

# Time in seconds. The suggested wait takes earlier rejected requests into account only up to this
# time.
_MAX_BEHIND_S = 30.0


@dataclass(frozen=True, slots=True)
class LimitedPrincipal(Principal):
    """A principal with a rate limit or a quota.

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

    If the cost of a request exceeds the burst, a full bucket is enough, because otherwise the
    request could never be accepted. The bucket then has a debt.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._left, self._at = rate.burst, clock()
        # Time (by `clock`) at which the request that was rejected last may be sent again.
        self._last = self._at

    @property
    def left(self) -> float:
        """Return the number of images that may be sent now."""
        now = self._clock()
        self._left = min(self.rate.burst, self._left + (now - self._at) * self.rate.per_s)
        self._at = now
        return self._left

    def take(self, cost: int) -> None:
        """Take the tokens for a request. The request needs `cost` tokens, or a full bucket.

        Raises:
            RateLimited: the bucket has too few tokens. The error contains the time to wait.
        """
        needed = min(float(cost), self.rate.burst)
        # Tolerate rounding errors, because of which a billionth may be missing after the suggested
        # wait.
        if (lacking := needed - self.left) > 1e-9:
            wait_s = lacking / self.rate.per_s
            # Requests that were rejected earlier go first. If their client never retries, they
            # delay other requests by at most `_MAX_BEHIND_S`.
            behind_s = self._last - self._at + needed / self.rate.per_s
            if behind_s < _MAX_BEHIND_S:
                wait_s = max(wait_s, behind_s)
            self._last = self._at + wait_s
            raise RateLimited(
                f"the rate limit of this key is {self.rate.text} images: retry in {wait_s:.2f} s",
                wait_s,
            )
        self._left -= cost
