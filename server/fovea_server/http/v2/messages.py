"""Requests and answers of the v2 protocol over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_server.error_status import v2_http_status

if TYPE_CHECKING:
    from fovea_server.http.v2.routing import Route

JSON = b"application/json"
BINARY = b"application/octet-stream"
TEXT = b"text/plain"
EVENTS = b"text/event-stream; charset=utf-8"

Buffer = bytes | memoryview

# Decimal digits that always fit a signed 64-bit number.
_LONGEST_VERSION = 18


@dataclass(slots=True, eq=False)
class Request:
    """A request.

    Attributes:
        target: path and query, as sent.
        headers: by name in lower case; the last of several with one name.
        id: in the log and in the answer.
        began: by `time.monotonic`.
        body: as sent; complete when an endpoint gets it.
        answer: that of a request that needs no endpoint, mostly a refusal.
        names: "model", "version", "region", ... in the path; None if absent.
        hold: counts bytes held for the request, also those sent; raises QueueFull.
    """

    method: str
    target: str
    headers: dict[bytes, bytes]
    id: str
    began: float
    body: bytes | bytearray = b""
    answer: Answer | None = None
    route: Route | None = None
    names: dict[str, str | None] = field(default_factory=dict)
    hold: Callable[[int], None] = field(init=False)

    def header(self, name: str) -> str | None:
        """Look up a header; None if absent."""
        value = self.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    def name(self, kind: str) -> str:
        """Return the name of a model or region in the path; "" if absent."""
        return self.names[kind] or ""

    @property
    def version(self) -> int | None:
        """The version in the path; None if absent."""
        text = self.names["version"]
        if text is None:
            return None
        if len(text) > _LONGEST_VERSION:
            raise InvalidRequest(
                f"failed to get model version from specified version string '{text}', version "
                "should be an integral value > 0"
            )
        return int(text)


@dataclass(slots=True, eq=False)
class Answer:
    """An answer, its body in pieces; `error` if it reports one."""

    status: int = 200
    body: list[Buffer] = field(default_factory=list)
    media_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    error: FoveaError | None = None


def json_answer(value: object) -> Answer:
    """Make an answer with a value as JSON."""
    return Answer(body=[orjson.dumps(value)])


def error_answer(error: FoveaError, media_type: bytes = JSON) -> Answer:
    """Make an answer with an error in Triton's form."""
    answer = refusal(v2_http_status(error), str(error), media_type)
    answer.error = error
    return answer


def refusal(status: int, message: str, media_type: bytes = TEXT) -> Answer:
    """Make an answer with an error message and a status."""
    # It may quote a client's bytes that are no valid text.
    message = message.encode(errors="backslashreplace").decode()
    return Answer(status, [orjson.dumps({"error": message})], media_type)
