"""A line of the log for each request that the application answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fovea_server.logs import requests as log

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestLog:
    """The application, whose answers are told; those of the v2 protocol never come here.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http" or not log.isEnabledFor(logging.DEBUG):
            await self._app(scope, receive, send)
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                target = b"?".join(filter(None, (scope["raw_path"], scope["query_string"])))
                status = message["status"]
                log.debug("%s %r %d", scope["method"], target.decode("latin-1"), status)
            await send(message)

        await self._app(scope, receive, told)
