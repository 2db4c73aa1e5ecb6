"""A canary while it runs: which requests it answers, and how well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from math import exp, log, sqrt
from typing import TypeVar

from fovea_preprocess.errors import (
    DeadlineExceeded,
    FoveaError,
    NoMemory,
    QueueFull,
    RateLimited,
    ShuttingDown,
)
from fovea_preprocess.text import counted
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Prediction
from fovea_server.error_status import http_status
from fovea_server.models.config.config_check import validate
from fovea_server.models.model import ServedModel, State
from fovea_server.rollout.promotion_documents import CanaryFigures, CanaryPlan, Event
from fovea_server.rollout.record import CanaryCounts
from fovea_server.rollout.shadow import Shadow
from fovea_server.rollout.shadow_report import ShadowRequest
from fovea_server.rollout.shadows import Shadows
from fovea_server.traffic.call import CALL

T = TypeVar("T")

# It fails when so rare a chance alone would explain what is seen: it is looked at each second.
_CHANCE = 1e-4
# Errors that nobody is alarmed by.
_USUAL_ERRORS = 0.001
_LATENCIES = 5000
# With fewer answers there is no p99 to compare with, and with fewer of its own it does not pass.
_ENOUGH, _FEWEST = 100, 20
_BEYOND = 0.01
# Images that are compared at most, of what nobody has time to wait for, and at least.
_MAX_COMPARED, _ENOUGH_COMPARED = 1_000_000, 50


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
    def since(self) -> float | None:
        """The time of the oldest answer whose time is kept; None after a restart."""
        return self._took[0][0] if self._took else None

    def seconds(self, since: float = 0.0) -> list[float]:
        """Return how long the answers since then took, ascending."""
        return sorted(took for at, took in self._took if at >= since)

    @property
    def p99_ms(self) -> float | None:
        """The time within which 99 % were answered; None without any."""
        return _p99_ms(self.seconds())


class RunningCanary:
    """Gives its share of the requests to a canary.

    A request that the canary fails is answered by the current version.

    Args:
        event: began it; InvalidOption where it is no canary's.

    Attributes:
        version: of the canary.
        until: the time at which it becomes current, or goes back if it has seen too little.
        own, others: figures of the canary and of the current version.
        shadow: compares it with the current version; None where that has no limit.
        trouble: a reason to go back that nothing has to be seen for; else empty.
    """

    def __init__(self, models: Models, event: Event) -> None:
        self._plan = validate(CanaryPlan, event)
        self.event = event
        self.version: int = event["version"]
        self.until = datetime.fromisoformat(event["at"]) + timedelta(seconds=self._plan.seconds)
        self.own, self.others = VersionFigures(), VersionFigures()
        self.shadow: Shadow | None = None
        self.trouble = ""
        self._models = models
        self._due = 0.0

    async def compare(self, name: str, shadows: Shadows) -> None:
        """Begin to compare its results, if they have a limit."""
        if (limit := self._plan.max_disagreement) is None:
            return
        try:
            request = ShadowRequest(
                version=self.version, share=1, images=_MAX_COMPARED, max_disagreement=limit
            )
            self.shadow = await shadows.begin(name, request, self.event["previous"])
        except FoveaError as error:
            self.trouble = f"its results cannot be compared: {error}"

    @property
    def counts(self) -> CanaryCounts:
        """Its counts so far, to be kept over restarts."""
        return CanaryCounts(
            version=self.version,
            at=self.event["at"],
            answered=self.own.answered,
            failed=self.own.failed,
            current_answered=self.others.answered,
            current_failed=self.others.failed,
        )

    def go_on(self, counts: CanaryCounts) -> None:
        """Count on from what it had seen before the server was started again."""
        self.own.answered, self.own.failed = counts.answered, counts.failed
        self.others.answered, self.others.failed = counts.current_answered, counts.current_failed

    def figures(self) -> CanaryFigures:
        """Describe how it does."""
        return CanaryFigures(
            version=str(self.version),
            until=self.until,
            waits_for=self.lacks() or None,
            answered=self.own.answered,
            failed=self.own.failed,
            p99_ms=self.own.p99_ms,
            current_answered=self.others.answered,
            current_failed=self.others.failed,
            current_p99_ms=self.others.p99_ms,
        )

    async def ask(self, model: ServedModel, answer: Callable[[ServedModel], Awaitable[T]]) -> T:
        """Choose a version for a request, and await its answer."""
        chosen = self._choose(model)
        figures = self.others if chosen is model else self.own
        call, began = CALL.get(), time.monotonic()
        charged = 0 if call is None else call.images
        try:
            found = await answer(chosen)
        except FoveaError as error:
            # It may have been replaced meanwhile.
            if chosen.state is State.READY:
                figures.failed += _is_fault(error)
                if chosen is model or not _may_do_elsewhere(error):
                    raise
        else:
            failed = _has_fault(found)
            figures.add(time.monotonic() - began, failed=failed)
            if not failed or chosen is model:
                return found
        if call is not None:
            call.paid += call.images - charged
        began = time.monotonic()
        found = await answer(self._models.get(model.name))
        self.others.add(time.monotonic() - began, failed=_has_fault(found))
        return found

    def _choose(self, model: ServedModel) -> ServedModel:
        """Return the canary as often as its share says, and where it can answer."""
        self._due += self._plan.share
        if self._due < 1 or model.version == self.version:
            return model
        self._due -= 1
        try:
            found = self._models.get(model.name, self.version)
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
        return self._difference() or self._slowness()

    def _difference(self) -> str | None:
        if self.shadow is None or not self.shadow.is_over:
            return None
        document = self.shadow.document()
        if document.state != "decided":
            return f"its results are not compared any more: {document.reason}"
        return document.reason if document.exceeds else None

    def _slowness(self) -> str | None:
        own, others, limit = self.own, self.others, self._plan.max_p99
        if limit is None or own.since is None or others.since is None:
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

    def lacks(self) -> str:
        """Say what has to be seen before it can become current; empty once all is."""
        wanted = [(_FEWEST - self.own.answered, "request", "to it")]
        if self._plan.max_p99 is not None:
            wanted.append((_ENOUGH - self.others.answered, "request", "to the current version"))
        if self._plan.max_disagreement is not None:
            report = None if self.shadow is None else self.shadow.report
            compared = 0 if report is None else report.images
            wanted.append((_ENOUGH_COMPARED - compared, "image", "to be compared"))
        return " and ".join(
            f"{counted(count, f'more {what}')} {whose}"
            for count, what, whose in wanted
            if count > 0
        )


def _is_fault(error: FoveaError) -> bool:
    """Return True for an error of the model: neither the client's, nor of the whole server."""
    return http_status(error) >= 500 and not isinstance(error, (NoMemory, ShuttingDown))


def _may_do_elsewhere(error: FoveaError) -> bool:
    """Return True for an error that a request need not meet with another version."""
    full = isinstance(error, QueueFull) and not isinstance(error, RateLimited)
    return full or (_is_fault(error) and not isinstance(error, DeadlineExceeded))


def _has_fault(found: object) -> bool:
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
