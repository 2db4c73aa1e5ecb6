"""Answers the requests of one protocol, whether they succeed or fail."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from fovea_preprocess.errors import BodyTooLarge, FoveaError
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.http.cors import Cors
from fovea_server.http.guard import Guard
from fovea_server.http.messages import Request, Response
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.request_id import HEADER, request_id

log = logging.getLogger(__name__)

ID_HEADER = HEADER.encode()

# The status that proxies log for a client that left before the answer.
_CLIENT_LEFT = 499

Client = Sequence[str | int] | None

LARGE_ANSWER = 65_536
"""Bytes from which several writes are cheaper than a copy."""


class Front(ABC):
    """Answers the requests of one protocol.

    Attributes:
        keeps_refused: a refused request is answered after its body, and its connection is kept;
            otherwise it is answered at once, and its connection closes.
        cors: marks the answers that pages from elsewhere may read.
    """

    keeps_refused: ClassVar[bool]

    def __init__(self, service: Service) -> None:
        self.service = service
        self.budget = service.budget
        self.cors = Cors(service.settings.cors_origin)
        self._guard = Guard(service, service.settings.http_address)

    @abstractmethod
    def takes(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return True for a request of this protocol; names of headers are in lower case."""

    @abstractmethod
    def route(self, request: Request) -> None:
        """Give a request its endpoint, or an answer; FoveaError: it is refused."""

    @abstractmethod
    def error_answer(self, error: FoveaError) -> Response:
        """Make an answer with an error."""

    @abstractmethod
    def too_large(self, size: int | None) -> BodyTooLarge:
        """Make the error for a body over the limit; `size` is None where it is not declared."""

    def admit(
        self, method: str, target: str, headers: dict[bytes, bytes], client: Client
    ) -> Request:
        """Route a request by its head, or refuse it; `client` is address and port."""
        request = self.begin(method, target, headers, client)
        try:
            self._guard.check(method, headers)
            self.route(request)
        except FoveaError as error:
            request.answer = self.error_answer(error)
        return request

    def begin(
        self, method: str, target: str, headers: dict[bytes, bytes], client: Client
    ) -> Request:
        """Make a request without a route, with its id."""
        given = headers.get(ID_HEADER)
        own_id = request_id(None if given is None else given.decode("latin-1"))
        reservation = Reservation(self.budget)
        request = Request(method, target, headers, own_id, time.monotonic(), reservation)
        request.client = str(client[0]) if client else None
        if (tracer := self.service.traffic.tracer) is not None:
            request.span = tracer.begin(request.header("traceparent"), request.header("tracestate"))
        return request

    async def answer(self, request: Request) -> Response:
        """Answer a complete request that has an endpoint."""
        assert request.endpoint is not None
        try:
            return await request.endpoint(self.service, request)
        except FoveaError as error:
            return self.error_answer(error)
        except Exception:
            # The traceback goes to the log only.
            log.exception("%s %r", request.method, request.target)
            return self.error_answer(
                FoveaError("an internal error; the server's log has the details")
            )

    def report(self, request: Request, answer: Response | None, size: int) -> None:
        """Log and count a request.

        Args:
            request: answered, or left by its client.
            answer: None where the client left before it.
            size: bytes that were sent of its body.
        """
        traffic, model = self.service.traffic, request.names.get("model") or ""
        status, error = (_CLIENT_LEFT, None) if answer is None else (answer.status, answer.error)
        if request.api == "inference":
            if request.span is not None:
                path = request.target.partition("?")[0]
                operation = f"{path[:3]}/models/{{model}}/{path.rpartition('/')[2]}"
                request.span.name, request.span.id = f"{request.method} {operation}", request.id
            traffic.inferred(model, status, request.began, error, request.span)
        if request.control:
            what = f"{request.method} {request.target!r}"
            secret = self.service.http_restrictions.secret(request.api)
            traffic.controlled(request.client, secret, request.header("origin"), what, status)
        if traffic.access_log is not None:
            address = request.client or "-"
            asked = request.method, request.target
            access = Access(address, *asked, model, status, size, request.began, request.id)
            traffic.access_log.add(access, probe=request.api == "health")
