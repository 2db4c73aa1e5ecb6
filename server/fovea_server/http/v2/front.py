"""Routes the requests of the v2 protocol."""

from __future__ import annotations

from fovea_preprocess.errors import BodyTooLarge, FoveaError
from fovea_server.http.allow import allow
from fovea_server.http.front import Front
from fovea_server.http.messages import Answer, Request
from fovea_server.http.v2.answers import error_answer, refusal
from fovea_server.http.v2.compression import too_large
from fovea_server.http.v2.routing import resolve


class V2Front(Front):
    """Answers requests of the v2 protocol."""

    keeps_refused = True

    def takes(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return True for everything under /v2."""
        return target.startswith(b"/v2")

    def admit(self, method: str, target: str, headers: dict[bytes, bytes]) -> Request:
        """Route a request by its head, or refuse it."""
        request = self.begin(method, target, headers)
        found = resolve(target.partition("?")[0])
        if found is None:
            request.answer = refusal(404, "Not Found")
            return request
        route, names = found
        key = self.service.http_restrictions.missing(route.api, request.header)
        if key is not None:
            request.answer = refusal(403, f"This API is restricted, expecting header '{key}'")
        elif method in route.methods or (method == "HEAD" and "GET" in route.methods):
            request.endpoint, request.api, request.names = route.endpoint, route.api, names
        else:
            asked = method == "OPTIONS" and "GET" in route.methods
            answer = Answer() if asked else refusal(405, "Method Not Allowed", route.refusal)
            answer.headers.append((b"allow", allow(route.methods).encode()))
            request.answer = answer
        return request

    def error_answer(self, error: FoveaError) -> Answer:
        """Make an answer in Triton's form."""
        return error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Make the error with Triton's text."""
        return too_large(size, self.service.settings.http_max_input_size)
