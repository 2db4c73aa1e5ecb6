"""Takes the requests for WebSockets, which are checked as those of other routes are."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import (
    BodyTooLarge,
    FoveaError,
    InvalidOption,
    InvalidRequest,
    QueueFull,
    Unsupported,
)
from fovea_server.dataplane.service import Service
from fovea_server.http.front import ID_HEADER, Front
from fovea_server.http.messages import Request, Response
from fovea_server.http.v1.answers import error_answer
from fovea_server.http.v1.body import too_large
from fovea_server.http.v1.head import query_options, query_values, timeout_of
from fovea_server.statistics.family import Family
from fovea_streams.events.following import EventLogs, after_of, kinds_of
from fovea_streams.tracking.tracks import Tracks

if TYPE_CHECKING:
    from fovea_streams.sockets.first_key import Handler

MOST_SOCKETS = 500
# A client opens no more while it has as many as are free: so one alone has half of all, and others
# always find a place.
# Of them, those whose client has shown no key yet: strangers must not take the places of others.
MOST_KEYLESS = 50

_FRAMES = re.compile(
    r"/v1/models/(?P<model>[^/]+)(?:/versions/(?P<version>0*[1-9][0-9]{0,99}))?/stream"
)
_EVENTS = re.compile(r"/v1/streams/(?P<stream>[^/]+)/events")
_KEY = b"sec-websocket-key"


class UpgradeRequired(InvalidRequest):
    """The address has a WebSocket, and the request did not ask for one."""


class SocketFront(Front):
    """Answers requests for the frames of a model and the events of a stream.

    A page that has no key yet gives it in its first message; everyone else is refused before.

    Args:
        logs: finds the events of a stream.
        tracks: the ids of objects on the frames.
    """

    keeps_refused = False

    def __init__(self, service: Service, logs: EventLogs, tracks: Tracks) -> None:
        super().__init__(service)
        self._logs, self._tracks = logs, tracks
        self._open: Counter[str] = Counter()
        self._of_clients: Counter[str] = Counter()
        self._keyless = 0

    def takes(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return True for a WebSocket, and for a plain request of what has nothing else."""
        if method != "GET" or not target.startswith((b"/v1/models/", b"/v1/streams/")):
            return False
        path = _path(target.decode("latin-1"))
        if _EVENTS.fullmatch(path):
            return any(name == _KEY for name, _ in headers)
        return _FRAMES.fullmatch(path) is not None

    def route(self, request: Request) -> None:
        """Check all that is known before the connection is another one."""
        # A browser lets every page ask for a WebSocket, and read what it gets.
        self._guard.check("POST", request.headers)
        path = _path(request.call.path)
        query = request.call.path.partition("?")[2]
        if (frames := _FRAMES.fullmatch(path)) is not None:
            self._route_frames(request, frames, query)
        else:
            events = _EVENTS.fullmatch(path)
            assert events is not None, "it was taken"
            self._route_events(request, events["stream"], query)

    def _route_frames(self, request: Request, found: re.Match[str], query: str) -> None:
        call, values = request.call, dict(query_values(query))
        call.model = found["model"]
        version = None if found["version"] is None else int(found["version"])
        timeout_s = timeout_of(
            call.header("x-request-timeout-ms") or values.pop("timeout_ms", None)
        )
        if "frame" in values:
            raise InvalidOption("the frames of a connection are numbered by it: leave frame out")
        options = query_options(urlencode(values))
        made = secrets.token_urlsafe(9)  # as nobody else knows it, it ends with the connection
        if options.track is not None and options.stream_id is None:
            options = replace(options, stream_id=made)
        models = self.service.models

        def admit() -> None:
            self.service.authenticator.admit(call, "inference")
            model = models.get(call.model, version)
            model.check_ready()
            engine = model.engine
            if engine is None or engine.preprocessor is None:
                raise InvalidRequest(f"model '{call.model}' takes no images here")
            engine.resolve(options)
            if options.track is not None:
                self._tracks.turn_of(call.model, options, 1)

        def handler() -> Handler:
            from fovea_streams.sockets.frames import FrameHandler

            ended = partial(self._tracks.forget, made)
            return FrameHandler(self.service, call.model, version, options, timeout_s, ended)

        self._begin(request, "frames", admit, handler)

    def _route_events(self, request: Request, stream: str, query: str) -> None:
        call, values = request.call, query_values(query)
        given = call.header("last-event-id") or values.get("after")
        kinds = kinds_of(values.get("kinds", ""))

        def admit() -> None:
            for api in ("metadata", "model-repository", "cameras"):
                self.service.authenticator.admit(call, api)
            after_of(given, self._logs.of(stream))

        def handler() -> Handler:
            from fovea_streams.sockets.events import EventHandler

            return EventHandler(self._logs, stream, given, kinds)

        self._begin(request, "events", admit, handler)

    def _begin(
        self, request: Request, kind: str, admit: Callable[[], None], handler: Callable[[], Handler]
    ) -> None:
        asks = self.service.authenticator.keys is not None and request.call.token is None
        late = admit if asks and b"origin" in request.headers else None
        if late is None:
            admit()
        request.endpoint = partial(self._accept, kind, late, handler)

    async def _accept(
        self,
        kind: str,
        late: Callable[[], None] | None,
        handler: Callable[[], Handler],
        service: Service,
        request: Request,
    ) -> Response:
        if find_spec("websockets") is None:
            raise Unsupported(
                "WebSockets need a package that this server does not have (pip install "
                f"'fovea-serve[streams]'): {install_extra('streams')}"
            )
        if _KEY not in request.headers:
            raise UpgradeRequired(
                "this address is for WebSockets (ws://): fovea_client and fovea.js have stream()"
            )
        free = MOST_SOCKETS - self._open.total()
        holder = request.call.holder
        client = (request.call.client or "") if holder is None else holder.called
        if self._of_clients[client] >= free:
            raise QueueFull(
                f"{self._of_clients[client]} WebSockets of this client are open already, and as "
                f"many are left for others: close some",
                retry_after_s=10.0,
            )
        if late is not None and self._keyless >= MOST_KEYLESS:
            raise QueueFull(f"{MOST_KEYLESS} WebSockets wait for a key already", retry_after_s=10.0)
        from fovea_streams.sockets.first_key import with_first_key
        from fovea_streams.sockets.socket import Socket
        from fovea_streams.sockets.wire import Wire

        wire = Wire(service.settings.http_max_input_size)
        answer = wire.answer(request.call.path, request.headers)
        if answer.status_code != 101:
            version = request.headers.get(b"sec-websocket-version")
            upgrades = answer.status_code == 426 or version != b"13"
            refused = UpgradeRequired if upgrades else InvalidRequest
            raise refused(answer.body.decode().strip())
        answer.headers[ID_HEADER.decode()] = request.call.id
        socket = Socket(
            wire,
            answer.serialize(),
            request.call,
            self.budget,
            handler() if late is None else with_first_key(handler(), late, self._count_keyless),
            most=service.settings.http_max_input_size,
            patience_s=service.settings.body_timeout_s,
            opened=partial(self._count, kind, client),
        )
        return Response(101, successor=socket)

    def _count(self, kind: str, client: str, more: int) -> None:
        self._open[kind] += more
        self._of_clients[client] += more
        if not self._of_clients[client]:
            del self._of_clients[client]

    def _count_keyless(self, more: int) -> None:
        self._keyless += more

    def error_answer(self, error: FoveaError) -> Response:
        """Make an answer in the form of /v1."""
        answer = error_answer(error)
        if isinstance(error, UpgradeRequired):
            answer.status = 426
            answer.headers += [(b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
        elif isinstance(error, Unsupported):
            answer.status = 501
        return answer

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Make the error for a body over the limit."""
        return too_large(self.service.settings.http_max_input_size)

    def families(self) -> Iterator[Family]:
        """Count open connections by what they carry."""
        sockets = Family("fovea_websockets", "gauge", "Open WebSockets")
        for kind, count in self._open.items():
            sockets.add({"carries": kind}, count)
        yield sockets


def _path(target: str) -> str:
    return unquote(target.partition("#")[0].partition("?")[0])
