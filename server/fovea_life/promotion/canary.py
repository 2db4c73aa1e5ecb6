"""A canary while it runs: which requests it answers, and how well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from math import exp, log, sqrt
from typing import TypeVar

from fovea_life.promotion.comparison import CanaryComparison
from fovea_life.promotion.plan import CanaryPlan
from fovea_life.promotion.record import Event
from fovea_preprocess.errors import DeadlineExceeded, FoveaError, QueueFull, RateLimited
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.images import Prediction
from fovea_server.error_status import http_status
from fovea_server.models.model import ServedModel, State

T = TypeVar("T")

# It fails when so rare a chance alone would explain what is seen: it is looked at each second.
_CHANCE = 1e-4
# Errors that nobody is alarmed by.
_USUAL_ERRORS = 0.001
_LATENCIES = 5000
# With fewer answers there is no p99 to compare with, and with fewer of its own it does not pass.
_ENOUGH, _FEWEST = 100, 20
_BEYOND = 0.01


class VersionFigures:
    """The answers of a version, and how long the last of them took."""

    def __init__(self) -> None:
        self.answered = self.failed = 0
        self._took: deque[tuple[float, float]] = deque(maxlen=_LATENCIES)

    def add(self, seconds: float, *, failed: bool) -> None:
        """Count an answer that came now."""
        self.failed += failed
        self.answered += not failed
        self._took.append((time.monotonic(), seconds))

    @property
    def since(self) -> float:
        """The time of the oldest answer whose time is kept; there is one."""
        return self._took[0][0]

    def seconds(self, since: float = 0.0) -> list[float]:
        """Return how long the answers since then took, ascending."""
        return sorted(took for at, took in self._took if at >= since)

    @property
    def p99_ms(self) -> float | None:
        """The time within which 99 % were answered; None without any."""
        return _p99_ms(self.seconds())


class RunningCanary:
    """Gives its share of the requests to a canary, as `dataplane.part.CanaryTurns` says.

    A request that the canary fails is answered by the current version.

    Args:
        event: began it; InvalidOption where it is no canary's.

    Attributes:
        version: of the canary.
        until: the time at which it becomes current.
        own, others: figures of the canary and of the current version.
        comparison: of the results of both; None where it has no limit.
        trouble: a reason to go back that nothing has to be seen for; else empty.
    """

    def __init__(self, plane: DataPlane, event: Event) -> None:
        CanaryPlan.of(event)
        self.event = event
        self.version: int = event["version"]
        self.until = datetime.fromisoformat(event["at"]) + timedelta(seconds=event["seconds"])
        self.own, self.others = VersionFigures(), VersionFigures()
        self.comparison: CanaryComparison | None = None
        self.trouble = ""
        self._plane = plane
        self._due = 0.0

    async def ask(self, model: ServedModel, answer: Callable[[ServedModel], Awaitable[T]]) -> T:
        """Choose a version for a request, and await its answer."""
        chosen = self._chosen(model)
        figures = self.others if chosen is model else self.own
        began = time.monotonic()
        try:
            found = await answer(chosen)
        except FoveaError as error:
            # It may have been replaced meanwhile.
            if chosen.state is State.READY:
                figures.failed += _is_fault(error)
                if chosen is model or not _is_fault(error) or isinstance(error, DeadlineExceeded):
                    raise
        else:
            failed = _lost(found)
            figures.add(time.monotonic() - began, failed=failed)
            if not failed or chosen is model:
                return found
        return await answer(self._plane.get(model.name))

    def _chosen(self, model: ServedModel) -> ServedModel:
        """Return the canary as often as its share says, and where it can answer."""
        self._due += self.event["share"]
        if self._due < 1 or model.version == self.version:
            return model
        self._due -= 1
        try:
            found = self._plane.get(model.name, self.version)
        except FoveaError:
            return model
        return found if found.state is State.READY else model

    def fault(self) -> str | None:
        """Return the reason to go back, a sentence; None while there is none."""
        if self.trouble:
            return self.trouble
        own, others = self.own, self.others
        total, total_others = own.answered + own.failed, others.answered + others.failed
        usual = max(_USUAL_ERRORS, others.failed / max(1, total_others))
        if _tail(total, own.failed, usual) < _CHANCE:
            return (
                f"{own.failed} of {total} requests failed, and {others.failed} of {total_others} "
                "of the current version"
            )
        if self.comparison is not None and (differs := self.comparison.fault()) is not None:
            return differs
        return self._slowness()

    def _slowness(self) -> str | None:
        own, others, limit = self.own, self.others, self.event.get("max_p99")
        if limit is None or not own.answered or others.answered < _ENOUGH:
            return None
        # Of the same time: what slows all down for a while is no fault of the canary.
        since = max(own.since, others.since)
        seconds, usual = own.seconds(since), others.seconds(since)
        p99, usual_p99 = _p99_ms(seconds), _p99_ms(usual)
        if p99 is None or usual_p99 is None or len(usual) < _ENOUGH:
            return None
        slower = sum(1e3 * each > (1 + limit) * usual_p99 for each in seconds)
        # Of few answers the p99 is not known well: more than 1 % of all may take longer.
        longer = _BEYOND + 3 * sqrt(_BEYOND / len(usual))
        if _tail(len(seconds), slower, longer) < _CHANCE:
            return (
                f"its p99 is {p99:.1f} ms, more than {limit:.0%} above the {usual_p99:.1f} ms of "
                "the current version"
            )
        return None

    @property
    def seen_enough(self) -> bool:
        """True once it has answered enough to become current."""
        compared = self.event.get("max_p99") is None or self.others.answered >= _ENOUGH
        compared &= self.comparison is None or self.comparison.seen_enough
        return compared and self.own.answered >= _FEWEST


def _is_fault(error: FoveaError) -> bool:
    """Return True for an error that is not the client's."""
    full = isinstance(error, QueueFull) and not isinstance(error, RateLimited)
    return full or http_status(error) >= 500


def _lost(found: object) -> bool:
    """Return True if an image of an answer has an error that is not the client's."""
    images = found.images if isinstance(found, Prediction) else ()
    return any(isinstance(one, FoveaError) and _is_fault(one) for one in images)


def _p99_ms(ascending: Sequence[float]) -> float | None:
    return 1e3 * ascending[int(0.99 * len(ascending))] if ascending else None


def _tail(count: int, seen: int, chance: float) -> float:
    """Return a bound of the chance of so many out of `count`, or more, where each has this chance.

    It is Chernoff's, at no cost whatever the count.
    """
    share = seen / count if count else 0.0
    if share <= chance:
        return 1.0
    far = share * log(share / chance)
    if share < 1:
        far += (1 - share) * log((1 - share) / (1 - chance))
    return exp(-count * far)
