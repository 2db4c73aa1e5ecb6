"""The holder of a key that has a rate, or a quota."""

from __future__ import annotations

from dataclasses import dataclass

from fovea_server.auth.bucket import TokenBucket
from fovea_server.auth.quota import Meter
from fovea_server.traffic.principal import Principal


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
