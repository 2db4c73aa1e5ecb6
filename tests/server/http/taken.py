"""The requests that a connection takes from bytes, as an application sees them."""

import asyncio

from uvicorn import Config
from uvicorn.server import ServerState

from fovea_server.byte_budget import ByteBudget
from fovea_server.http.connection import Bounds, Connection
from fovea_server.traffic.traffic import Traffic

Message = tuple[bytes, bytes, bytes]


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: object) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Taker:
    """A connection, and the requests that it takes: method, target and body of each."""

    def __init__(self) -> None:
        self.whole: list[Message] = []
        self.wire, self._state = Wire(), ServerState()
        config = Config(self._answer, interface="asgi3", ws="none", lifespan="off", log_config=None)
        traffic = Traffic((), log_access=False)
        bounds = Bounds(most=16, patience_s=60, budget=ByteBudget(1 << 30))
        self.connection = Connection(config, self._state, {}, traffic=traffic, bounds=bounds)
        self.connection.connection_made(self.wire)

    async def _answer(self, scope, receive, send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.whole.append((scope["method"].encode(), self.connection.url, body))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def take(self, *segments: bytes) -> bool:
        """Take bytes; return False if some are refused."""
        for segment in segments:
            if not self.wire.closed:
                self.connection.data_received(segment)
            # A request takes some turns of the loop, and the one behind it begins after that.
            quiet = 0
            while quiet < 3:
                before = len(self.whole)
                await asyncio.sleep(0)
                quiet = quiet + 1 if len(self.whole) == before else 0
        return b"HTTP/1.1 400 " not in self.wire.written

    async def leave(self) -> None:
        """End what is under way."""
        self.connection.connection_lost(None)
        while self._state.tasks:
            await asyncio.sleep(0)
