"""A load generator that costs little: one request after the other on a kept connection."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Self

import uvloop


class Connection(asyncio.Protocol):
    """A kept connection: one request at a time, as bytes, head and body."""

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect to a port of this machine."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._answer = b""

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)  # type: ignore[attr-defined]
        return await self._waiting

    def data_received(self, data: bytes) -> None:
        """Give the answer out as soon as it is whole."""
        answer = self._answer + data
        self._answer = answer
        end = answer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = answer[:end].lower()
        length = int(head.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
        if len(answer) == end + 4 + length:
            self._answer = b""
            self._waiting.set_result((int(head[9:12]), answer[end + 4 :]))

    def connection_lost(self, error: Exception | None) -> None:
        """Who still waits is told."""
        if not self._waiting.done():
            self._waiting.set_exception(error or ConnectionResetError("closed by the server"))

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


@dataclass(frozen=True)
class Burst:
    """What a burst of load measured.

    Attributes:
        requests: answered in all; perf_analyzer's also before its windows and between them.
        rate: requests/s.
        p50_ms: half of them took at most so long.
        p99_ms: 99 in a hundred of them.
        generator_cpu: cores that the generator took.
    """

    requests: int
    rate: float
    p50_ms: float
    p99_ms: float
    generator_cpu: float


def http_load(port: int, request: bytes, clients: int, seconds: float) -> Burst:
    """Keep `clients` requests under way; every answer must be 200.

    Args:
        port: of this machine.
        request: head and body, as it goes over the wire.
        clients: connections, each with one request at a time.
        seconds: length of the burst.
    """
    latencies: list[float] = []

    async def client(until: float) -> None:
        connection = await Connection.open(port)
        sent = time.perf_counter()
        while sent < until:
            status, body = await connection.ask(request)
            if status != 200:
                raise SystemExit(f"the server answered {status}: {body!r}")
            answered = time.perf_counter()
            latencies.append(answered - sent)
            sent = answered
        connection.close()

    async def run() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(until) for _ in range(clients)))

    started, cpu = time.perf_counter(), time.process_time()
    uvloop.run(run())
    wall = time.perf_counter() - started
    latencies.sort()
    return Burst(
        requests=len(latencies),
        rate=len(latencies) / wall,
        p50_ms=1e3 * latencies[len(latencies) // 2],
        p99_ms=1e3 * latencies[int(len(latencies) * 0.99)],
        generator_cpu=(time.process_time() - cpu) / wall,
    )
