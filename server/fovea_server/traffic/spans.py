"""The record of a request that is traced, until its spans are made.

It needs no package of OpenTelemetry, so that a server which does not trace loads none.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fovea_preprocess.errors import FoveaError

Attributes = dict[str, str | int]


class Stage(NamedTuple):
    """A part of the work on a request; `began` by `time.monotonic`."""

    name: str
    began: float
    seconds: float
    attributes: Attributes


@dataclass(slots=True, eq=False)
class RequestSpan:
    """The record of a request, filled in on its way.

    Attributes:
        caller: the span of the client, in the tracer's form; None if it sent none.
        name: of the operation, without names that clients choose.
        id: as in the log.
    """

    caller: object
    name: str = ""
    id: str = ""
    attributes: Attributes = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)


SPAN: ContextVar[RequestSpan | None] = ContextVar("span", default=None)
"""The record of the request that is being answered; None where it is not traced."""


class Tracer(Protocol):
    """Chooses the requests that are traced, and sends their spans."""

    def begin(self, traceparent: str | None, tracestate: str | None) -> RequestSpan | None:
        """Choose a request by the headers of W3C's trace context; None if it is not traced."""

    def end(
        self,
        span: RequestSpan,
        model: str,
        status: int | str,
        began: float,
        error: FoveaError | None,
    ) -> None:
        """Make the spans of an answered request.

        Args:
            span: of it; named.
            model: that it asked; "" for none.
            status: of HTTP, or the name of gRPC's.
            began: by `time.monotonic`.
            error: that was the answer, if any.
        """

    def close(self) -> None:
        """Send the rest, for a limited time; blocks."""
