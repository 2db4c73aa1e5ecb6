"""The record of a traced request, until its spans are made.

This module needs no OpenTelemetry package, so a server without tracing need not load one.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

Attributes = dict[str, str | int]


class Stage(NamedTuple):
    """A stage of the work on a request; `began_ns` is a value of `time.monotonic_ns()`."""

    name: str
    began_ns: int
    ns: int
    attributes: Attributes


@dataclass(slots=True, eq=False)
class RequestSpan:
    """The record of a traced request, which the parts of the server fill in.

    Attributes:
        caller: the client's span, as an object of the tracer; None if the client sent no span.
        name: name of the operation; it contains no text that clients choose.
        id: request id, as in the log.
        attributes: attributes for the span of the request.
        stages: the stages so far; each becomes a child span.
    """

    caller: object
    name: str = ""
    id: str = ""
    attributes: Attributes = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)


SPAN: ContextVar[RequestSpan | None] = ContextVar("span", default=None)
"""The record of the request that is being processed; None if it is not traced."""
