"""The record of a traced request, until its spans are made.

It needs no OpenTelemetry package, so that a server without tracing loads none.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

Attributes = dict[str, str | int]


class Stage(NamedTuple):
    """A part of the work on a request; `began_ns` is a `time.monotonic_ns()`."""

    name: str
    began_ns: int
    ns: int
    attributes: Attributes


@dataclass(slots=True, eq=False)
class RequestSpan:
    """The record of a request, which the parts of the server fill in.

    Attributes:
        caller: the client's span, in the tracer's form; None if the client sent none.
        name: name of the operation, without names that clients choose.
        id: request id, as in the log.
        attributes: attributes of the request's span.
        stages: the stages so far, one child span each.
    """

    caller: object
    name: str = ""
    id: str = ""
    attributes: Attributes = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)


SPAN: ContextVar[RequestSpan | None] = ContextVar("span", default=None)
"""The record of the request that is being processed; None if it is not traced."""
