"""A canary while it runs: which requests it answers, and how well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from math import exp, lgamma, log
from typing import TypeVar

from fovea_life.promotion.comparison import CanaryComparison
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
_LATENCIES = 2000
# With fewer answers there is no p99 to compare with, and with fewer of its own it does not pass.
_ENOUGH, _FEWEST = 100, 20


class VersionFigures:
    """The answers of a version, and how long the last of them took."""

    def __init__(self) -> None:
        self.answered = self.failed = 0
        self.seconds: deque[float] = deque(maxlen=_LATENCIES)

    @property
    def p99_ms(self) -> float | None:
        """The time within which 99 % were answered; None without any."""
        ordered = sorted(self.seconds)
        return 1e3 * ordered[int(0.99 * len(ordered))] if ordered else None


class RunningCanary:
    """Gives its share of the requests to a canary, as `dataplane.part.CanaryTurns` says.

    A request that the canary fails is answered by the current version.

    Args:
        event: began it.

    Attributes:
        version: of the canary.
        until: the time at which it becomes current.
        own, others: figures of the canary and of the current version.
        comparison: of the results of both; None where it has no limit.
        trouble: a reason to go back that nothing has to be seen for; else empty.
    """

    def __init__(self, plane: DataPlane, event: Event) -> None:
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
            figures.failed += failed
            figures.answered += not failed
            figures.seconds.append(time.monotonic() - began)
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
        limit, p99, usual_p99 = self.event.get("max_p99"), own.p99_ms, others.p99_ms
        if limit is None or p99 is None or usual_p99 is None or len(others.seconds) < _ENOUGH:
            return None
        slower = sum(1e3 * each > (1 + limit) * usual_p99 for each in own.seconds)
        if _tail(len(own.seconds), slower, 0.01) < _CHANCE:
            return (
                f"its p99 is {p99:.1f} ms, more than {limit:.0%} above the {usual_p99:.1f} ms of "
                "the current version"
            )
        return None

    @property
    def seen_enough(self) -> bool:
        """True once it has answered enough to become current."""
        compared = self.event.get("max_p99") is None or len(self.others.seconds) >= _ENOUGH
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


def _tail(count: int, seen: int, chance: float) -> float:
    """Return the chance of so many out of `count`, or more, where each has this `chance`."""
    below = 0.0
    for k in range(seen):
        ways = lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1)
        below += exp(ways + k * log(chance) + (count - k) * log(1 - chance))
    return 1 - below
