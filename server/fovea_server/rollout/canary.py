"""A running canary: the requests that it gets, and its comparison with the current version."""

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

# A canary fails if its errors or slow responses are less probable than this. The probability is
# computed for a canary that is as good as the current version. The limit is low because the check
# runs each second.
_CHANCE = 1e-4
# Fraction of failed requests that counts as normal for any version.
_USUAL_ERRORS = 0.001
_LATENCIES = 5000
# Smallest numbers of responses: of the current version before the p99 (99th percentile of
# durations) is compared, and successful ones of the canary before it can pass.
_ENOUGH, _FEWEST = 100, 20
_BEYOND = 0.01
# Numbers of images whose results are compared: the largest, which no canary reaches, and the
# smallest before a canary can pass.
_MAX_COMPARED, _ENOUGH_COMPARED = 1_000_000, 50


class VersionFigures:
    """Counts of a version's responses, and the durations of its latest responses."""

    def __init__(self) -> None:
        self.answered = self.failed = 0
        self._took: deque[tuple[float, float]] = deque(maxlen=_LATENCIES)

    def add(self, seconds: float, *, failed: bool) -> None:
        """Count a response that has just ended, and store its duration."""
        self.failed += failed
        self.answered += not failed
        self._took.append((time.monotonic(), seconds))

    @property
    def since(self) -> float | None:
        """Value of `time.monotonic()` for the oldest stored response.

        The value is None if no response is stored.
        """
        return self._took[0][0] if self._took else None

    def seconds(self, since: float = 0.0) -> list[float]:
        """Return the durations of stored responses, in seconds, ascending.

        Responses before `since`, a value of `time.monotonic()`, are left out.
        """
        return sorted(took for at, took in self._took if at >= since)

    @property
    def p99_ms(self) -> float | None:
        """The 99th percentile of the durations, in milliseconds; None if there are no responses."""
        return _p99_ms(self.seconds())


class RunningCanary:
    """Runs a fraction of a model's requests on the canary, and counts errors and durations.

    If the canary fails a request, the current version responds instead.

    Args:
        models: the models of the server.
        event: the event of the history that began the canary.

    Raises:
        InvalidOption: the event does not describe a canary.

    Attributes:
        version: version number of the canary.
        until: time at which the canary becomes the current version, or fails if it has answered too
            few requests.
        own: counts and durations of the canary's responses.
        others: counts and durations of the current version's responses.
        shadow: compares the results of both versions; None if the plan has no limit for their
            difference.
        trouble: the reason why the canary must fail without any request; empty if there is none.
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
        """Begin to compare the results of both versions, if the plan limits their difference."""
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
        """The counts so far; they are stored, so that a restarted server continues the canary."""
        return CanaryCounts(
            version=self.version,
            at=self.event["at"],
            answered=self.own.answered,
            failed=self.own.failed,
            current_answered=self.others.answered,
            current_failed=self.others.failed,
        )

    def go_on(self, counts: CanaryCounts) -> None:
        """Continue from the counts that were stored before a restart of the server."""
        self.own.answered, self.own.failed = counts.answered, counts.failed
        self.others.answered, self.others.failed = counts.current_answered, counts.current_failed

    def figures(self) -> CanaryFigures:
        """Return the figures of the canary and of the current version."""
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
        """Choose a version for a request, run the request on it, and return the response.

        If the canary fails the request, the current version responds instead. `answer` runs the
        request on a version.
        """
        chosen = self._choose(model)
        figures = self.others if chosen is model else self.own
        call, began = CALL.get(), time.monotonic()
        charged = 0 if call is None else call.images
        try:
            found = await answer(chosen)
        except FoveaError as error:
            # An error is not counted if the version was unloaded while the request ran.
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
        """Return the canary, if it is ready and its turn has come; otherwise return `model`."""
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
        """Return the reason why the canary fails, as a sentence; None if it does not fail."""
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
            return f"its results are no longer compared: {document.reason}"
        return document.reason if document.verdict == "above" else None

    def _slowness(self) -> str | None:
        own, others, limit = self.own, self.others, self._plan.max_p99
        if limit is None or own.since is None or others.since is None:
            return None
        # Both versions are compared over the same period, so that a slowdown of the whole server
        # does not count against the canary.
        since = max(own.since, others.since)
        seconds, usual = own.seconds(since), others.seconds(since)
        p99, usual_p99 = _p99_ms(seconds), _p99_ms(usual)
        if p99 is None or usual_p99 is None or len(usual) < _ENOUGH:
            return None
        slower = sum(1e3 * each > (1 + limit) * usual_p99 for each in seconds)
        # The p99 of few responses is uncertain. So more than 1 % of the canary's responses may be
        # slower than the current version's p99.
        longer = _BEYOND + 3 * sqrt(_BEYOND / len(usual))
        if _tail(len(seconds), slower, longer) < _CHANCE:
            return (
                f"its p99 is {p99:.1f} ms, more than {limit:.0%} above the {usual_p99:.1f} ms of "
                "the current version"
            )
        return None

    def lacks(self) -> str:
        """Describe the requests that the canary still needs before it can pass.

        The text is empty if the canary needs no more requests.
        """
        wanted = [(_FEWEST - self.own.answered, "request", "to it")]
        if self._plan.max_p99 is not None:
            wanted.append((_ENOUGH - self.others.answered, "request", "to the current version"))
        lacks = [
            f"{counted(count, f'more {what}')} {whose}"
            for count, what, whose in wanted
            if count > 0
        ]
        if (count := self._uncompared()) > 0:
            lacks.append(f"{counted(count, 'more image')} to be compared{self._left_out()}")
        return " and ".join(lacks)

    def shortage(self) -> str:
        """Return the reason why the canary fails at its end, if it still lacks requests."""
        reason = f"its time is over, and it still needs {self.lacks()}"
        if self._uncompared() > 0 and self._left_out():
            reason += (
                ". A comparison needs idle CPU time: give a longer --for, or compare the versions "
                "with `fovea shadow` first"
            )
        return reason

    def _uncompared(self) -> int:
        """Return the number of images that must still be compared before the canary can pass."""
        if self._plan.max_disagreement is None:
            return 0
        report = None if self.shadow is None else self.shadow.report
        return _ENOUGH_COMPARED - (0 if report is None else report.images)

    def _left_out(self) -> str:
        skipped = 0 if self.shadow is None else self.shadow.skipped.total()
        were = "was" if skipped == 1 else "were"
        why = "because requests waited"
        return f" ({counted(skipped, 'image')} {were} not compared, {why})" if skipped else ""


def _is_fault(error: FoveaError) -> bool:
    """Return whether the model caused the error, and not the client or the whole server."""
    return http_status(error) >= 500 and not isinstance(error, (NoMemory, ShuttingDown))


def _may_do_elsewhere(error: FoveaError) -> bool:
    """Return whether the same request may succeed on another version."""
    full = isinstance(error, QueueFull) and not isinstance(error, RateLimited)
    return full or (_is_fault(error) and not isinstance(error, DeadlineExceeded))


def _has_fault(found: object) -> bool:
    """Return whether an image in a response has an error that the model caused."""
    images = found.images if isinstance(found, Prediction) else ()
    return any(isinstance(one, FoveaError) and _is_fault(one) for one in images)


def _p99_ms(ascending: Sequence[float]) -> float | None:
    return 1e3 * ascending[int(0.99 * len(ascending))] if ascending else None


def _tail(count: int, seen: int, chance: float) -> float:
    """Return an upper bound on the probability of at least `seen` events in `count` trials.

    `chance` is the probability of the event in each trial. The bound is Chernoff's; its computation
    takes constant time.
    """
    share = seen / count if count else 0.0
    if share <= chance:
        return 1.0
    far = share * log(share / chance)
    if share < 1:
        far += (1 - share) * log((1 - share) / (1 - chance))
    return exp(-count * far)
