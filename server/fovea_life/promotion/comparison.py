"""Compares what a canary finds with what the current version does, by a shadow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fovea_life.promotion.record import Event
from fovea_life.shadow.shadows import Shadows

if TYPE_CHECKING:
    from fovea_life.shadow.shadow import Shadow

# It sees what nobody has time to wait for, so there is no need to spare images.
_MOST = 1_000_000
# With fewer images it has no say.
_ENOUGH = 50


class CanaryComparison:
    """The candidate of a shadow is the canary; it sees images that the current version answers."""

    def __init__(self, name: str, limit: float, shadows: Shadows, shadow: Shadow) -> None:
        self._name, self._limit = name, limit
        self._shadows, self._shadow = shadows, shadow

    @classmethod
    async def begin(cls, name: str, canary: Event, shadows: Shadows) -> Self:
        """Begin for a canary with a limit; raises as `Shadows.begin`."""
        from fovea_life.shadow.documents import ShadowRequest

        version, limit = canary["version"], canary["max_disagreement"]
        request = ShadowRequest(version=version, share=1, images=_MOST, max_disagreement=limit)
        shadow = await shadows.begin(name, request, canary["previous"])
        return cls(name, limit, shadows, shadow)

    def fault(self) -> str | None:
        """Return the reason to go back, a sentence; None while there is none."""
        shadow = self._shadow
        if not shadow.is_over:
            return None
        document, report = shadow.document(), shadow.report
        if document.state == "decided" and report is not None and report.interval is not None:
            return document.reason if report.interval[0] > self._limit else None
        return f"its results are not compared any more: {document.reason}"

    @property
    def seen_enough(self) -> bool:
        """True once there are images to judge by."""
        report = self._shadow.report
        return report is not None and report.images >= _ENOUGH

    async def end(self) -> None:
        """Stop comparing."""
        if not self._shadow.is_over:
            await self._shadows.end(self._name, "the canary is over")
