"""WebSockets over ASGI: access checks, limits for their number, and the end of each WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn, Union

import orjson
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import (
    BodyTooLarge,
    FoveaError,
    QueueFull,
    Unauthenticated,
    Unsupported,
    UpgradeRequired,
)
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.error_status import http_status
from fovea_server.http.call_middleware import begin
from fovea_server.http.guard import Guard
from fovea_server.http.messages import error_headers
from fovea_server.http.v1.answers import error_json
from fovea_server.json_text import MAX_OF_STRANGERS, parse_json
from fovea_server.observability.histogram import Family
from fovea_server.traffic.call import CLIENT_LEFT, Call, fields

if TYPE_CHECKING:
    from fovea_server.streams.sockets.frames import Events, Frames

log = logging.getLogger(__name__)

# A client may open another WebSocket only if it has fewer WebSockets than are free. One client
# alone can thus take at most half of all WebSockets, and other clients always find a free one.
MAX_SOCKETS = 500
MAX_KEYLESS = 50
"""Largest number of WebSockets whose clients have not sent an API key yet.

Without this limit, such clients could take all WebSockets of other clients.
"""
KEY_WAIT_S = 5.0
RESTART = 1012
"""Close code of a WebSocket that ends because the server stops."""

_FAULT, _REFUSED = 1011, 1008
_HINT = f'send {{"api_key": KEY}} as the first message, within {KEY_WAIT_S:g} s'
_LONGEST_KEY = 8192

Content = bytes | bytearray | str


@dataclass(slots=True, eq=False)
class SocketLimits:
    """The limits that all WebSockets of a server share.

    Attributes:
        budget: memory budget that counts the bytes of messages and responses.
        patience_s: time in seconds. A WebSocket is closed if a message arrives too slowly, or the
            client reads nothing, for this time.
        resting: number of WebSockets that pause because their clients sent many frames.
    """

    budget: ByteBudget
    patience_s: float
    resting: int = 0


Conversation = Union["Frames", "Events"]
MakeConversation = Callable[[Call], Conversation]
Headers = Sequence[tuple[bytes, bytes]]


class Socket:
    """An accepted WebSocket. `sent` is the number of bytes of the messages that were sent."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket, self.sent = websocket, 0

    async def receive(self) -> Content:
        """Return the next message.

        Raises:
            WebSocketDisconnect: the connection has ended.
        """
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        content: Content | None = message.get("bytes")
        return message["text"] if content is None else content

    async def send(self, text: bytes) -> None:
        """Send a JSON message. If the client does not read, wait.

        Raises:
            WebSocketDisconnect: the client has disconnected.
        """
        await self._websocket.send_text(text.decode())
        self.sent += len(text)


class Sockets:
    """All WebSockets of a server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._guard = Guard(service, service.settings.http_address)
        self._open: Counter[str] = Counter()
        self._of_clients: Counter[str] = Counter()
        self._keyless = 0

    async def serve(self, websocket: WebSocket, make: MakeConversation) -> None:
        """Answer a request for a WebSocket, and run the conversation."""
        call = begin({**websocket.scope, "method": "GET"}, self._service.traffic)
        call.enter()
        socket, status, error = Socket(websocket), CLIENT_LEFT, None
        try:
            conversation, admitted = self._admit(call, websocket.headers.raw, make)
            with self._place(conversation.kind, call, admitted):
                await websocket.accept(headers=[(b"x-request-id", call.id.encode())])
                status = 101
                code, reason = await self._hold(conversation, socket, admitted)
                await websocket.close(code, reason)
        except (OSError, WebSocketDisconnect):
            pass  # the client has disconnected
        except Exception as failed:  # noqa: BLE001  (a bug is not a client error)
            error = failed if isinstance(failed, FoveaError) else _fault(failed, call)
            status, body = http_status(error), error_json(error)
            answer = Response(body, status, media_type="application/json")
            answer.raw_headers += (*error_headers(error), (b"x-request-id", call.id.encode()))
            socket.sent = len(body)
            with suppress(OSError):
                await websocket.send_denial_response(answer)
        finally:
            call.end(status, socket.sent, error)

    def refuse(self, call: Call, headers: Headers, make: MakeConversation) -> NoReturn:
        """Reject a plain HTTP request, with the error of the access check or of `no_socket`."""
        self._admit(call, headers, make)
        raise no_socket()

    def _admit(
        self, call: Call, headers: Headers, make: MakeConversation
    ) -> tuple[Conversation, bool]:
        """Check the access of a request.

        Return its conversation, and whether access was granted.
        """
        # Check the Origin header, because browsers let every page open a WebSocket and read from
        # it.
        found = fields(headers)
        self._guard.check("POST", found)
        conversation = make(call)
        asks = self._service.authenticator.keys is not None and call.token is None
        if asks and b"origin" in found:
            return conversation, False
        conversation.admit()
        return conversation, True

    @contextmanager
    def _place(self, kind: str, call: Call, admitted: bool) -> Iterator[None]:
        """Reserve one of the WebSockets while the block runs.

        Raises:
            QueueFull: the client has as many WebSockets as are free, or too many clients have sent
                no API key yet.
        """
        client = (call.client or "") if call.principal is None else call.principal.called
        mine = self._of_clients[client]
        if mine >= MAX_SOCKETS - self._open.total():
            raise QueueFull(
                f"this client already has {mine} open WebSockets, and the others are reserved for "
                "other clients: close some",
                retry_after_s=10.0,
            )
        if not admitted and self._keyless >= MAX_KEYLESS:
            raise QueueFull(
                f"{MAX_KEYLESS} WebSockets already wait for their API key: try again later",
                retry_after_s=10.0,
            )
        places = (self._open, kind), (self._of_clients, client)
        for counter, name in places:
            counter[name] += 1
        try:
            yield
        finally:
            for counter, name in places:
                counter[name] -= 1
            self._of_clients += Counter()  # remove the entries that are 0

    async def _hold(
        self, conversation: Conversation, socket: Socket, admitted: bool
    ) -> tuple[int, str]:
        """Run a conversation to its end. Return the close code and the reason."""
        try:
            if not admitted:
                await self._receive_key(conversation, socket)
            reason = await conversation.run(socket)
        except FoveaError as error:
            await socket.send(error_text(error))
            return _REFUSED, error.code
        except WebSocketDisconnect as left:
            if left.code != RESTART:
                raise
        except asyncio.CancelledError:
            pass  # uvicorn cancels tasks that exceed the exit timeout
        except Exception as error:  # noqa: BLE001  (every client gets an error)
            return _FAULT, str(_fault(error, conversation.call))
        else:
            if not self._service.models.draining:
                return 1000, reason
        return RESTART, "the server is stopping"

    async def _receive_key(self, conversation: Conversation, socket: Socket) -> None:
        self._keyless += 1
        try:
            async with asyncio.timeout(KEY_WAIT_S):
                content = await socket.receive()
        except TimeoutError:
            raise Unauthenticated(f"no API key arrived: {_HINT}") from None
        finally:
            self._keyless -= 1
        key = key_in(content)
        if key is None:
            raise Unauthenticated(f"this server requires a key: {_HINT}")
        conversation.call.field_key = key
        conversation.admit()

    def families(self) -> Iterator[Family]:
        """Return the number of open WebSockets by kind."""
        sockets = Family("fovea_websockets", "gauge", "Open WebSockets")
        for kind, count in self._open.items():
            sockets.add({"carries": kind}, count)
        yield sockets


def no_socket() -> FoveaError:
    """Return the error for a plain HTTP request, or for a missing WebSocket package."""
    if find_spec("websockets") is None:
        return Unsupported(
            "WebSockets need a package that is not installed on the server (pip install "
            f"'fovea-serve[streams]'): {install_extra('streams')}"
        )
    return UpgradeRequired(
        "this URL accepts only WebSockets (ws://): use stream() of fovea_client or fovea.js"
    )


def key_in(content: Content) -> str | None:
    """Return the API key in a message, or None if the message contains no key."""
    if not isinstance(content, str) or len(content) > _LONGEST_KEY:
        return None
    try:
        found = parse_json(content.encode(), MAX_OF_STRANGERS)
    except (orjson.JSONDecodeError, BodyTooLarge):
        return None
    key = found.get("api_key") if isinstance(found, dict) else None
    return key if isinstance(key, str) else None


def error_text(error: FoveaError, **head: int) -> bytes:
    """Return an error as JSON in the form of /v1, with the values that HTTP sends as headers."""
    document: dict[str, float] = {**head, "status": http_status(error)}
    if (retry_after_s := getattr(error, "retry_after_s", None)) is not None:
        document["retry_after_s"] = round(retry_after_s, 3)
    return orjson.dumps(document)[:-1] + b"," + error_json(error)[1:]


def _fault(error: Exception, call: Call) -> FoveaError:
    """Log an internal error, and return the error for the client."""
    log.error("GET %r", call.shown, exc_info=error, extra={"id": call.id})
    return FoveaError("an internal error; the server's log has the details")
