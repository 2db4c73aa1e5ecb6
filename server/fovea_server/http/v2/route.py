"""The route of the v2 protocol: admits and refuses requests by their heads."""

from __future__ import annotations

from fovea_preprocess.errors import BodyTooLarge, FoveaError, Restricted
from fovea_server.http.messages import Request, Response, allow
from fovea_server.http.plain import PlainRoute
from fovea_server.http.v2.answers import error_answer, refusal, too_large
from fovea_server.http.v2.routes import resolve


class V2Route(PlainRoute):
    """Answers requests of the v2 protocol."""

    keeps_refused = True

    def takes(self, method: str, target: str) -> bool:
        """Return True for everything under /v2."""
        return target.startswith("/v2")

    def route(self, request: Request) -> None:
        """Route a request by its head, or refuse it."""
        found = resolve(request.call.path.partition("?")[0])
        if found is None:
            request.answer = refusal(404, "Not Found")
            return
        (route, names), call = found, request.call
        method = call.method
        is_allowed = method in route.methods or (method == "HEAD" and "GET" in route.methods)
        if is_allowed:
            request.endpoint, request.names = route.endpoint, names
            call.model = names["model"] or ""
        operation = f"{method} /v2/models/{{model}}/{route.path.rpartition('/')[2]}"
        try:
            self.service.authenticator.admit(
                call,
                route.api,
                operation=operation if is_allowed and route.api == "inference" else "",
                control=f"POST {call.shown!r}" if route.controls and method == "POST" else "",
            )
        except Restricted as error:
            if self.service.authenticator.http.missing(route.api, call.header) is None:
                raise
            request.answer = refusal(403, str(error))
            return
        if not is_allowed:
            asked = method == "OPTIONS" and "GET" in route.methods
            answer = Response() if asked else refusal(405, "Method Not Allowed", route.refusal)
            answer.headers.append((b"allow", allow(route.methods).encode()))
            request.answer = answer

    def error_answer(self, error: FoveaError) -> Response:
        """Make an answer in Triton's form."""
        return error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Make the error with Triton's text."""
        return too_large(size, self.service.settings.http_max_input_size)
