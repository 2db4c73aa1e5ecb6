"""HEAD and OPTIONS for every route of the application that answers GET."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount

from fovea_server.http.allow import allow

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def methods_at(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """The methods that have a route at the address of a request."""
    # A mount that was entered has moved the root.
    at = {**scope, "root_path": ""}
    return [method for method in _METHODS if _takes(routes, {**at, "method": method})]


def _takes(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    # A mount has no methods; what is mounted here are files.
    return any(
        route.matches(scope)[0] is Match.FULL
        and (scope["method"] == "GET" or not isinstance(route, Mount))
        for route in routes
    )


class HeadAndOptions:
    """ASGI middleware that answers OPTIONS, and HEAD as GET; the HTTP server leaves the body out.

    Args:
        app: what answers.
        routes: of the application.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        method = scope.get("method")
        if method in ("HEAD", "OPTIONS"):
            methods = methods_at(self._routes, scope)
            if "GET" in methods and method == "OPTIONS":
                await Response(headers={"Allow": allow(methods)})(scope, receive, send)
                return
            if "GET" in methods:
                scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
