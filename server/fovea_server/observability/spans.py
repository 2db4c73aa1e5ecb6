"""The record of a request that is traced, until its spans are made.

It needs no package of OpenTelemetry, so that a server which does not trace loads none.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

Attributes = dict[str, str | int]


class Stage(NamedTuple):
    """A part of the work on a request; it began at this time of `time.monotonic_ns`."""

    name: str
    began_ns: int
    ns: int
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
