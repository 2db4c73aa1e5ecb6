"""A share of things that come in clusters, as objects in images, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

_Z = 1.96


@dataclass(slots=True)
class ClusteredShare:
    """Keeps sums alone, whatever the number of clusters."""

    clusters: int = 0
    differing: float = 0.0
    total: float = 0.0
    _differing2: float = 0.0
    _product: float = 0.0
    _total2: float = 0.0

    def add(self, differing: float, total: float) -> None:
        """Add a cluster, of which a part differs; one of nothing says nothing."""
        self.clusters += total > 0
        self.differing += differing
        self.total += total
        self._differing2 += differing**2
        self._product += differing * total
        self._total2 += total**2

    @property
    def value(self) -> float | None:
        """Return the share that differs; None of nothing."""
        return self.differing / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the interval of 95 % confidence; None of nothing.

        Objects of one image differ together. So it is Wilson's, of as many as would be as sure if
        each were drawn alone (Korn and Graubard, Survey Methodology 24, 1998).
        """
        if (share := self.value) is None:
            return None
        # Of shares of 0 and 1 nothing is known of how they cluster: each cluster counts once.
        alone = float(self.clusters)
        if 0 < share < 1 and self.clusters > 1:
            spread = self._differing2 - 2 * share * self._product + share**2 * self._total2
            spread *= self.clusters / (self.clusters - 1)
            least = share * (1 - share) * self.total
            alone = self.total * min(1.0, least / max(spread, least))
        middle = share + _Z**2 / (2 * alone)
        half = _Z * sqrt(share * (1 - share) / alone + _Z**2 / (4 * alone**2))
        scale = 1 + _Z**2 / alone
        return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
