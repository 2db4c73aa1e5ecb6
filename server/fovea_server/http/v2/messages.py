"""A request that has arrived whole, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from fovea_preprocess.errors import FoveaError
from fovea_server.status import v2_http_status

JSON = b"application/json"
BINARY = b"application/octet-stream"
TEXT = b"text/plain"
EVENTS = b"text/event-stream; charset=utf-8"

Buffer = bytes | memoryview


@dataclass(slots=True, eq=False)
class Request:
    """A request of which all has been read.

    Attributes:
        method: in capitals.
        path: as sent.
        headers: by name in lower case; of several with one name, the last.
        body: as sent.
        names: what the path names: "model", "version", "region", ...; None for what it does not.
        hold: counts bytes that are held for the request besides those that were sent; QueueFull
            where there is no room for them.
    """

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes | bytearray
    names: dict[str, str | None]
    hold: Callable[[int], None]

    def header(self, name: str) -> str | None:
        """The value of a header; None where it is absent."""
        value = self.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True, eq=False)
class Answer:
    """What goes back; the body in pieces that need not be joined.

    Attributes:
        error: that it tells, where it was raised on purpose.
    """

    status: int = 200
    body: list[Buffer] = field(default_factory=list)
    media_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    error: FoveaError | None = None


def json_answer(value: object) -> Answer:
    """A value as JSON."""
    return Answer(body=[orjson.dumps(value)])


def error_answer(error: FoveaError, media_type: bytes = JSON) -> Answer:
    """An error in Triton's form."""
    answer = refusal(v2_http_status(error), str(error), media_type)
    answer.error = error
    return answer


def refusal(status: int, message: str, media_type: bytes = TEXT) -> Answer:
    """An error that has a status of its own."""
    # It may quote what a client sent, and that may be no text.
    message = message.encode(errors="backslashreplace").decode()
    return Answer(status, [orjson.dumps({"error": message})], media_type)
