"""Events of a stream over a WebSocket: a message for each."""

from __future__ import annotations

from dataclasses import dataclass

from fovea_streams.events.following import EventLogs, after_of
from fovea_streams.sockets.socket import Socket


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Tells the events of a stream behind the one that a client was `given`."""

    logs: EventLogs
    stream: str
    given: str | None
    kinds: frozenset[str]

    async def __call__(self, socket: Socket) -> str:
        """Send events until the stream or the server ends, or the key does."""
        socket.drop_messages()
        after = after_of(self.given, self.logs.of(self.stream))
        async for events in self.logs.follow(self.stream, after, self.kinds):
            for event in events:
                await socket.send(event.text)
        if socket.call.again is not None:
            # It raises where it is the key that has ended.
            socket.call.again()
        return "the stream has ended"
