"""Logs and measures every request at its end, for all transports."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING

from fovea_preprocess.errors import (
    DeadlineExceeded,
    FoveaError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from fovea_preprocess.text import counted
from fovea_server.error_status import metric_status
from fovea_server.log_lines import cut
from fovea_server.logs import CONTROL, SERVER_LOG
from fovea_server.observability.access_log import Access, AccessLog
from fovea_server.observability.histogram import Durations, Family
from fovea_server.traffic.call import Call

if TYPE_CHECKING:
    from fovea_server.observability.otel import OtelTracer

# Largest number of keys with a label of their own. Each label takes memory, and time in every
# scrape.
_MAX = 100
_OTHERS = "others"

log = logging.getLogger("fovea_server.refused")
control = logging.getLogger(CONTROL)

_INTERVAL_S = 60.0


class KeyCounts:
    """Counts requests and images by key. One thread may add counts; any thread may read.

    The first `_MAX` names have labels of their own; all other names are counted together.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._images: Counter[str] = Counter()

    def count(self, name: str, status: int | str, images: int) -> None:
        """Count a finished request, and the images that were charged to its key."""
        self._requests[self._label(name), str(status)] += 1
        self.charge(name, images)

    def charge(self, name: str, images: int) -> None:
        """Count images of a request that is counted elsewhere, without counting the request."""
        self._images[self._label(name)] += images

    def _label(self, name: str) -> str:
        if name not in self._names and len(self._names) < _MAX:
            self._names.add(name)
        return name if name in self._names else _OTHERS

    def families(self) -> list[Family]:
        """Return the metric families; the list is empty before the first request with a key."""
        requests = Family(
            "fovea_key_requests_total", "counter", "Requests for inference, by key and status"
        )
        images = Family(
            "fovea_key_images_total", "counter", "Images that count towards the limits of each key"
        )
        for (name, status), count in list(self._requests.items()):
            requests.add({"key": name, "status": status}, count)
        for name, count in list(self._images.items()):
            images.add({"key": name}, count)
        return [requests, images] if self._names else []


class Traffic:
    """Logs requests, measures them by model, and warns about rejected requests.

    It logs at most one warning about rejected requests per minute. Call its methods on the event
    loop only. Only names in `models` become labels; for other names that clients send, the label is
    "".

    Attributes:
        durations: durations of inference requests.
        keys: numbers of inference requests and images by key.
        access_log: log with a line for every request; None if it is disabled.
        tracer: traces inference requests; None if tracing is disabled.
    """

    def __init__(
        self, models: Container[str], *, log_access: bool, tracer: OtelTracer | None = None
    ) -> None:
        self._models = models
        self.tracer = tracer
        self.durations = Durations(models)
        self.keys = KeyCounts()
        self.access_log = AccessLog(SERVER_LOG) if log_access else None
        # (model, reason) -> (count, latest message): the rejected requests since the last warning.
        self._refused: dict[tuple[str, str], tuple[int, str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def measure(self, call: Call, status: int | str, error: FoveaError | None) -> None:
        """Measure and trace an inference request; ignore other requests.

        The metrics get the status of `metric_status`; the trace gets the sent status.
        """
        if not call.operation:
            return
        label, principal = metric_status(status, error), call.principal
        if principal is not None:
            self.keys.count(principal.label, label, call.images)
        elif isinstance(error, Unauthenticated):
            self.keys.count("", label, 0)
        if call.span is not None and self.tracer is not None:
            call.span.name, call.span.id = call.operation, call.id
            if principal is not None:
                call.span.attributes["fovea.key"] = principal.name
            self.tracer.end(call.span, cut(call.model), status, call.began, error)
        self.durations.observe(call.model, label, time.monotonic() - call.began)
        # The two exceptions depend on limits of the client: its rate limit and its timeout.
        own_limit = isinstance(error, RateLimited | DeadlineExceeded)
        if isinstance(error, Unavailable) and not own_limit:
            self.count_refusal(call.model if call.model in self._models else "", error)

    def log(self, call: Call, status: int | str, size: int) -> None:
        """Log a finished call, and the change to the server that the call made or tried to make."""
        if call.control:
            self._log_control(call, status)
        if self.access_log is not None:
            key = "" if call.principal is None else call.principal.name
            arguments = call.client or "-", call.method, call.shown, call.model
            access = Access(*arguments, status, size, call.began, call.id, key)
            self.access_log.add(access, probe=call.probe)

    def count_refusal(self, model: str, error: FoveaError) -> None:
        """Count a rejected request for the next warning; log the first rejected request at once."""
        key = (model, error.code)
        count, _ = self._refused.get(key, (0, ""))
        self._refused[key] = (count + 1, str(error))
        if self._timer is None:
            self._warn()

    def _log_control(self, call: Call, status: int | str) -> None:
        done = status in ("OK", 200)
        by = call.client or "-"
        origin = None if call.is_rpc else call.header("origin")
        if call.principal is not None:
            by += f" with key {call.principal.name}"
        elif call.secret is not None and done:
            by += f" with {call.secret}"
        page = f", from a page of {origin!r}" if origin else ""
        control.log(
            logging.INFO if done else logging.WARNING,
            "%s by %s%s: %s",
            call.control,
            by,
            page,
            status,
            extra={"client": call.client, "origin": origin, "status": status},
        )

    def _warn(self) -> None:
        self._timer = None
        if self._refused:
            self._log_refused()
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._warn)

    def _log_refused(self) -> None:
        count_refusal, self._refused = self._refused, {}
        total = sum(count for count, _ in count_refusal.values())
        parts = (
            f"{count} {reason}{f' of model {model!r}' if model else ''} ({message})"
            for (model, reason), (count, message) in count_refusal.items()
        )
        log.warning(
            "%s refused in the last minute: %s",
            counted(total, "request"),
            "; ".join(parts),
            extra={"refused": total},
        )

    def close(self) -> None:
        """Log the rejected requests that no warning has reported yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self._refused:
            self._log_refused()
