"""Answers every request of the v2 protocol, whether it succeeds or fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from fovea_preprocess.errors import FoveaError, ShuttingDown
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.http.allow import allow
from fovea_server.http.v2.messages import Answer, Request, error_answer, refusal
from fovea_server.http.v2.routing import resolve
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.request_id import HEADER, request_id

log = logging.getLogger(__name__)

ID_HEADER = HEADER.encode()

# The status that proxies log for a client that left before the answer.
_CLIENT_LEFT = 499

LARGE_ANSWER = 65_536
"""Bytes from which several writes are cheaper than a copy."""


class Front:
    """Answers requests of the v2 protocol."""

    def __init__(self, service: Service, budget: ByteBudget) -> None:
        self.service = service
        self.budget = budget

    def admit(self, method: str, target: str, headers: dict[bytes, bytes]) -> Request:
        """Route a request by its head, or refuse it."""
        given = headers.get(ID_HEADER)
        own_id = request_id(None if given is None else given.decode("latin-1"))
        request = Request(method, target, headers, own_id, time.monotonic())
        found = resolve(target.partition("?")[0])
        if found is None:
            request.answer = refusal(404, "Not Found")
            return request
        route, names = found
        key = self.service.http_restrictions.missing(route.api, request.header)
        if key is not None:
            request.answer = refusal(403, f"This API is restricted, expecting header '{key}'")
        elif method in route.methods or (method == "HEAD" and "GET" in route.methods):
            request.route, request.names = route, names
        else:
            asked = method == "OPTIONS" and "GET" in route.methods
            answer = Answer() if asked else refusal(405, "Method Not Allowed", route.refusal)
            answer.headers.append((b"allow", allow(route.methods).encode()))
            request.answer = answer
        return request

    async def answer(self, request: Request) -> Answer:
        """Answer a complete request that has a route."""
        assert request.route is not None
        try:
            return await request.route.endpoint(self.service, request)
        except FoveaError as error:
            return error_answer(error)
        except Exception:
            # The traceback goes to the log only.
            log.exception("%s %r", request.method, request.target)
            return refusal(500, "an internal error; the server's log has the details")

    def report(
        self, request: Request, client: Sequence[str | int] | None, answer: Answer | None, size: int
    ) -> None:
        """Log and count a request.

        Args:
            request: answered, or left by its client.
            client: address and port.
            answer: None where the client left before it.
            size: bytes that were sent of its body.
        """
        traffic, model, api = self.service.traffic, "", ""
        status, error = (_CLIENT_LEFT, None) if answer is None else (answer.status, answer.error)
        if request.route is not None:
            model, api = request.name("model"), request.route.api
        if api == "inference":
            traffic.inferred(model, status, request.began, error)
        if traffic.access_log is not None:
            address = str(client[0]) if client else "-"
            asked = request.method, request.target
            access = Access(address, *asked, model, status, size, request.began, request.id)
            traffic.access_log.add(access, probe=api == "health")


def stopped() -> Answer:
    """Make the answer to a request that uvicorn cancels, as it outlasts the time to exit."""
    return error_answer(ShuttingDown("the server stopped before the answer was there"))
