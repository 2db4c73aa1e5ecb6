"""Answers every request of the v2 protocol, whether it succeeds or fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fovea_preprocess.errors import FoveaError
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.http.allow import allow
from fovea_server.http.v2.messages import Answer, Request, error_answer, refusal
from fovea_server.http.v2.routing import Route, resolve
from fovea_server.traffic.access_log import Access

log = logging.getLogger(__name__)

CLIENT_LEFT = 499
"""The status that proxies log for a client that left before the answer."""

LARGE_ANSWER = 65_536
"""Bytes from which several writes are cheaper than a copy."""


class Front:
    """Answers requests of the v2 protocol."""

    def __init__(self, service: Service, budget: ByteBudget) -> None:
        self.service = service
        self.budget = budget

    def admit(
        self, method: str, path: str, headers: dict[bytes, bytes], hold: Callable[[int], None]
    ) -> tuple[Route, Request] | Answer:
        """Route a request by its head; return an answer instead if it is refused."""
        found = resolve(path)
        if found is None:
            return refusal(404, "Not Found")
        route, names = found
        answered = "GET" if method == "HEAD" else method
        request = Request(answered, path, headers, b"", names, hold)
        key = self.service.http_restrictions.missing(route.api, request.header)
        if key is not None:
            return refusal(403, f"This API is restricted, expecting header '{key}'")
        if answered in route.methods:
            return route, request
        asked = method == "OPTIONS" and "GET" in route.methods
        answer = Answer() if asked else refusal(405, "Method Not Allowed", route.refusal)
        answer.headers.append((b"allow", allow(route.methods).encode()))
        return answer

    async def answer(self, route: Route, request: Request) -> Answer:
        """Answer a complete request."""
        try:
            return await route.endpoint(self.service, request)
        except FoveaError as error:
            return error_answer(error)
        except Exception:
            # The traceback goes to the log only.
            log.exception("%s %r", request.method, request.path)
            return refusal(500, "an internal error; the server's log has the details")

    def report(
        self, found: tuple[Route, Request] | Answer | None, access: Access, error: FoveaError | None
    ) -> None:
        """Log and count a request, once it is answered or its client has left."""
        traffic, model, api = self.service.traffic, "", ""
        if isinstance(found, tuple):
            route, request = found
            model, api = request.name("model"), route.api
        if api == "inference":
            traffic.inferred(model, access.status, access.began, error)
        if traffic.access_log is not None:
            traffic.access_log.add(access._replace(model=model), probe=api == "health")
