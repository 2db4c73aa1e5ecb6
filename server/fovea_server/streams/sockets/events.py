"""Events of a stream over a WebSocket: a message for each."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.websockets import WebSocketDisconnect

from fovea_server.dataplane.service import Service
from fovea_server.http.v1.head import query_values
from fovea_server.streams.events.following import EventLogs, after_of, kinds_of
from fovea_server.streams.sockets.socket import Socket
from fovea_server.traffic.call import Call


class Events:
    """Tells one client the events of a stream behind the one that it has.

    Args:
        query: of the address; InvalidOption where there is no such kind of event.
    """

    kind = "events"

    def __init__(
        self, service: Service, logs: EventLogs, call: Call, stream: str, query: str
    ) -> None:
        self.call, self._service, self._logs, self._stream = call, service, logs, stream
        values = query_values(query)
        self._given = call.header("last-event-id") or values.get("after")
        self._kinds = kinds_of(values.get("kinds", ""))

    def admit(self) -> None:
        """Check the key, the stream, and the number of the event."""
        for api in ("metadata", "model-repository", "cameras"):
            self._service.authenticator.admit(self.call, api)
        after_of(self._given, self._logs.of(self._stream))

    async def run(self, socket: Socket) -> str:
        """Send events until the stream, the server or the key ends, or the client leaves."""
        # A client has nothing to say, and may.
        listening = asyncio.create_task(_listen(socket))
        try:
            after = after_of(self._given, self._logs.of(self._stream))
            async for events in self._logs.follow(self._stream, after, self._kinds):
                for event in events:
                    await socket.send(event.text)
                if listening.done():
                    break
        finally:
            listening.cancel()
        if self.call.again is not None:
            # It raises where it is the key that has ended.
            self.call.again()
        return "the stream has ended"


async def _listen(socket: Socket) -> None:
    with suppress(WebSocketDisconnect):
        while True:
            await socket.receive()
