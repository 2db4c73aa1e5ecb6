"""Puts load on a server from the event loop of this process."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self, cast

import httptools
import orjson

from fovea_server.bench.load import Burst, ClosedLoop, Endpoint, LoadSample, OpenLoop

_TICK_S = 0.25
# Pause in seconds after a failed request, so that a server that rejects connections is not flooded.
_PAUSE_S = 0.05
_SEED = 1
_TIMING = b'"timing_ms":'


class Reply(NamedTuple):
    """A response: its status, its body, and the seconds in its header Retry-After."""

    status: int
    body: bytes
    retry_after_s: float = 0.0


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._retry_after_s = 0.0
        self._waiting: asyncio.Future[Reply] | None = None
        self.open = True

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect to a server; raise OSError if that fails."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port, ssl=tls)
        return connection

    async def ask(self, request: bytes) -> Reply:
        """Send a complete request, and return its response.

        Raises:
            ConnectionResetError: the server closed the connection before the response was complete.
        """
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def give_up(self, reason: str) -> None:
        """Close the connection; a waiting `ask` raises TimeoutError."""
        self._end(TimeoutError(reason))
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionResetError(f"the response is not HTTP: {error}"))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store the seconds of Retry-After; the parser calls this."""
        if name.lower() == b"retry-after" and value.isdigit():
            self._retry_after_s = float(value)

    def on_body(self, part: bytes) -> None:
        """Store a part of the body; the parser calls this."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Pass the response to the waiting `ask`; the parser calls this."""
        body = b"".join(self._parts)
        answer = Reply(self._parser.get_status_code(), body, self._retry_after_s)
        self._parts.clear()
        self._retry_after_s = 0.0
        if not self._parser.should_keep_alive():
            self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """Raise an error in the waiting `ask`, if there is one."""
        self.open = False
        self._end(error or ConnectionResetError("the server closed the connection"))

    def _end(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


async def apply(
    address: Endpoint, requests: Sequence[bytes], burst: Burst, report: Callable[[LoadSample], None]
) -> None:
    """Put a load on a server, and report the outcome of its requests a few times per second.

    Args:
        address: address of the server.
        requests: complete requests, with headers and body; they are sent one after another, again
            and again.
        burst: the load.
        report: function that gets the samples; `ended` is True in the last sample.
    """
    await _Sender(address, requests, burst, report).run()


@dataclass
class _Sender:
    _address: Endpoint
    _requests: Sequence[bytes]
    _burst: Burst
    _report: Callable[[LoadSample], None]

    def __post_init__(self) -> None:
        self._tls = ssl.create_default_context() if self._address.https else None
        self._idle: list[Connection] = []
        self._busy: dict[Connection, float] = {}
        self._under_way: set[asyncio.Task[Reply | None]] = set()
        self._sent = 0
        self._sample = LoadSample()
        self._counting = False
        self._reported_cpu_s = 0.0

    async def run(self) -> None:
        self._begin = time.perf_counter() + self._burst.warmup_s
        seconds = self._burst.seconds
        self._end = float("inf") if seconds is None else self._begin + seconds
        ticking = asyncio.create_task(self._tick())
        match self._burst.load:
            case ClosedLoop(clients):
                await asyncio.gather(*(self._client() for _ in range(clients)))
            case OpenLoop() as load:
                await self._run_open_loop(load)
                while self._under_way:
                    await asyncio.wait(self._under_way)
        ticking.cancel()
        for connection in self._idle:
            connection.close()
        self._sample.ended = True
        self._hand_over()

    async def _client(self) -> None:
        free = 0.0
        while self._more(max(free, now := time.perf_counter())):
            answer = await self._ask(now)
            pause_s = _PAUSE_S if answer is None else answer.retry_after_s
            if pause_s:
                free = time.perf_counter() + pause_s
                await asyncio.sleep(min(free, self._end) - time.perf_counter())

    async def _run_open_loop(self, load: OpenLoop) -> None:
        gaps = random.Random(_SEED)
        due = time.perf_counter()
        while self._more(due):
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._ask(due))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            due += gaps.expovariate(load.rate)
            # `sleep` lets the new task start and increase `_sent`, which `_more` reads.
            await asyncio.sleep(0)

    def _more(self, due: float) -> bool:
        if self._burst.seconds is None:
            return self._sent < len(self._requests)
        return due < self._end

    async def _ask(self, due: float) -> Reply | None:
        number = self._sent % len(self._requests)
        self._sent += 1
        sent = time.perf_counter()
        answer: Reply | None = None
        failure = ""
        try:
            connection = self._idle.pop() if self._idle else None
            if connection is None or not connection.open:
                connection = await self._connect()
            # `_tick` checks the timeouts of all requests, because a timer for each request would
            # take as much CPU time as the request.
            self._busy[connection] = sent
            try:
                answer = await connection.ask(self._requests[number])
            finally:
                del self._busy[connection]
        except OSError as error:
            failure = error.strerror or str(error)
        else:
            if connection.open:
                self._idle.append(connection)
        answered = time.perf_counter()
        if answer is not None and answer.status == 200:
            # Responses to requests of the warm-up also count. They balance the requests that are
            # still in flight at the end.
            self._sample.in_time += self._begin <= answered < self._end
        if due >= self._begin:
            self._count(number, answered - due, sent - due, answer, failure)
        return answer

    async def _connect(self) -> Connection:
        address, timeout_s = self._address, self._burst.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await Connection.connect(address.host, address.port, self._tls)
        except TimeoutError as error:
            raise OSError(f"no connection within {timeout_s:g} s") from error

    def _give_up(self) -> None:
        until = time.perf_counter() - self._burst.timeout_s
        for connection in [busy for busy, sent in self._busy.items() if sent < until]:
            connection.give_up(f"no response within {self._burst.timeout_s:g} s")

    def _count(
        self, number: int, latency: float, late: float, answer: Reply | None, failure: str
    ) -> None:
        sample = self._sample
        sample.late.append(late)
        if answer is None:
            sample.add_error(0, "no_answer", failure)
            return
        if answer.status != 200:
            sample.add_error(answer.status, *error_of(answer.body))
            return
        sample.latencies.append(latency)
        for stage, ms in _timing(answer.body).items():
            sample.stages[stage] = sample.stages.get(stage, 0.0) + ms
        if self._burst.seconds is None:
            sample.answers[number] = answer.body

    async def _tick(self) -> None:
        while True:
            self._give_up()
            left = self._begin - time.perf_counter()
            if left <= 0 and not self._counting:
                self._counting = self._sample.began = True
                self._reported_cpu_s = time.process_time()
            if self._counting:
                self._hand_over()
            await asyncio.sleep(min(_TICK_S, left) if left > 0 else _TICK_S)

    def _hand_over(self) -> None:
        sample, self._sample = self._sample, LoadSample()
        sample.seconds = max(0.0, min(time.perf_counter(), self._end) - self._begin)
        cpu_s = time.process_time()
        sample.cpu_s, self._reported_cpu_s = cpu_s - self._reported_cpu_s, cpu_s
        self._report(sample)


def error_of(body: bytes) -> tuple[str, str]:
    """Return the code and the message from the body of an error response of /v1 or /v2."""
    with suppress(orjson.JSONDecodeError, TypeError, KeyError):
        match orjson.loads(body)["error"]:
            case {"code": code, "message": message}:
                return str(code), str(message)
            case message:
                return "error", str(message)
    return "error", body[:200].decode("utf-8", "replace").strip()


def _timing(body: bytes) -> dict[str, float]:
    """Return the stage times at the end of a response of /v1; empty if the response has none."""
    if (at := body.rfind(_TIMING)) < 0:
        return {}
    with suppress(orjson.JSONDecodeError):
        timing: dict[str, float] = orjson.loads(body[at + len(_TIMING) : -1])
        return timing
    return {}
