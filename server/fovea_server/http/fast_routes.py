"""The base class of the predict and v2 routes.

They are faster than FastAPI's routes, and are tried first.

A route first checks access, for which it needs only the head of a request. It then receives the
body within limits. It answers or rejects the request in the form of its protocol.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from fovea_preprocess.errors import (
    BodyTimeout,
    BodyTooLarge,
    DeadlineExceeded,
    FoveaError,
)
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.http.messages import Request, Response
from fovea_server.http.receive import ClientLeft, Watch, cancelled_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

_LATE = (BodyTimeout, DeadlineExceeded)
# Smallest size in bytes of a response that is written in pieces. For smaller responses one copy is
# cheaper than several writes.
_LARGE_ANSWER = 65_536


class FastRoute(ABC):
    """Answers the requests of one protocol.

    Attributes:
        keeps_refused: True to keep the connection open after a rejected request, and drop the rest
            of its body; False to close the connection.
    """

    keeps_refused: ClassVar[bool]

    def __init__(self, service: Service) -> None:
        self.service, self.budget = service, service.budget

    @abstractmethod
    def takes(self, method: str, target: str) -> bool:
        """Return whether a request belongs to this protocol.

        `target` is the quoted path with the query.
        """

    @abstractmethod
    def route(self, request: Request) -> None:
        """Set the endpoint or the response of a request.

        Raises:
            FoveaError: the request is rejected.
        """

    @abstractmethod
    def error_answer(self, error: FoveaError) -> Response:
        """Return the response for an error, in the form of the protocol."""

    @abstractmethod
    def too_large(self, size: int | None) -> BodyTooLarge:
        """Return the error for a body that exceeds the limit.

        `size` is None if the client did not declare it.
        """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Send nothing if the client has disconnected."""
        request = self._admit(scope)
        answer = request.answer
        if answer is None:
            try:
                answer = await self._answer(request, receive)
            except ClientLeft:
                return
        elif not self.keeps_refused:
            _close(answer)
        await self._send(answer, request, scope, send)

    def _admit(self, scope: Scope) -> Request:
        """Route a request by its head. If the request is rejected, set its response."""
        state = scope["state"]
        request = Request(state["call"], state["headers"], Reservation(self.budget))
        try:
            self.route(request)
        except FoveaError as error:
            request.answer = self.error_answer(error)
        except Exception as error:  # noqa: BLE001  (a bug is not a client error)
            request.answer = self._fault(request, error)
        # Enter the trace span here, because it is unknown before the request is routed.
        request.call.enter()
        return request

    async def _answer(self, request: Request, receive: Receive) -> Response:
        """Receive the body, and return the response.

        Raises:
            ClientLeft: the client has disconnected.
        """
        assert request.endpoint is not None
        watch = Watch(receive, request.timeout_s, request.call.began)
        try:
            with self.budget.body() as request.hold, watch:
                await self._receive(request, watch)
                return await request.endpoint(self.service, request)
        except asyncio.CancelledError:
            return self.error_answer(cancelled_error())
        except ClientLeft:
            raise
        except FoveaError as error:
            # Remove the error's stack frames, because they refer to the body and would keep it in
            # memory until the next garbage collection.
            error.__traceback__ = error.__context__ = None
            answer = self.error_answer(error)
            # If the connection stays open, the HTTP server drops the rest of a rejected body.
            if not (watch.is_whole or (self.keeps_refused and not isinstance(error, _LATE))):
                _close(answer)
            return answer
        except Exception as error:  # noqa: BLE001  (every request gets a response)
            return self._fault(request, error)
        finally:
            request.body = b""
            request.reservation.release()

    async def _receive(self, request: Request, watch: Watch) -> None:
        limit = self.service.settings.http_max_input_size
        declared = request.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise self.too_large(int(declared))
        request.body = await watch.body(limit, partial(self.too_large, None))

    def _fault(self, request: Request, error: Exception) -> Response:
        """Log an internal error with its traceback, and return a response without the traceback."""
        call = request.call
        log.error("%s %r", call.method, call.shown, exc_info=error, extra={"id": call.id})
        return self.error_answer(FoveaError("an internal error; the server's log has the details"))

    async def _send(self, answer: Response, request: Request, scope: Scope, send: Send) -> None:
        """Send a response. If a large response exceeds the memory budget, send an error instead."""
        size = sum(map(len, answer.body))
        if large := size >= _LARGE_ANSWER:
            if not self.budget.has_room(size):
                await self._send(self.error_answer(self.budget.full_error()), request, scope, send)
                return
            self.budget.count_answer(size)
        try:
            scope["state"]["error"] = answer.error
            headers = [(b"content-type", answer.media_type), *answer.headers]
            headers.append((b"content-length", b"%d" % size))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            if request.call.method == "HEAD":
                await send({"type": "http.response.body"})
            elif not large:
                await send({"type": "http.response.body", "body": b"".join(answer.body)})
            else:
                for piece in answer.body:
                    more = {"type": "http.response.body", "body": piece, "more_body": True}
                    await send(more)
                await send({"type": "http.response.body"})
        finally:
            if large:
                self.budget.count_answer(-size)


class FastRoutes:
    """An ASGI application that passes a request to the first matching route, or else to `rest`."""

    def __init__(self, routes: Sequence[FastRoute], rest: ASGIApp) -> None:
        self._routes, self._rest = routes, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI specifies."""
        if scope["type"] == "http":
            call = scope["state"]["call"]
            for route in self._routes:
                if route.takes(call.method, call.path):
                    await route.handle(scope, receive, send)
                    return
        await self._rest(scope, receive, send)


def _close(answer: Response) -> None:
    """Add the header that closes the connection.

    The rest of the body will not be read.
    """
    answer.headers.append((b"connection", b"close"))
