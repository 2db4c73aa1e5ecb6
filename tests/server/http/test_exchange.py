"""Bodies and answers of one request: what they hold, and for how long."""

import asyncio
import gc
import socket
import sys
import time
import tracemalloc
import zlib
from functools import partial

import pytest
from tests.server.http.conftest import Wire
from uvicorn import Config
from uvicorn.server import ServerState

from fovea_preprocess.errors import BodyTimeout, BodyTooLarge, QueueFull
from fovea_server.byte_budget import ByteBudget
from fovea_server.http import connection
from fovea_server.http.connection import Bounds, Connection
from fovea_server.http.exchange import Exchange
from fovea_server.http.receive import Watch, unpack
from fovea_server.traffic.traffic import Traffic

pytestmark = pytest.mark.anyio

LIMIT = 1000
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


class Asked:
    """A connection whose application notes what it receives, and answers when it may."""

    def __init__(self, patience_s: float = 60) -> None:
        self.budget = ByteBudget(LIMIT)
        self.received: list[object] = []
        self.body, self.headers = b"ok", []
        self.may_answer = asyncio.Event()
        config = Config(self._answer, interface="asgi3", ws="none", log_config=None)
        bounds = Bounds(most=16, patience_s=patience_s, budget=self.budget)
        self.wire, state = Wire(), ServerState()
        self.open = state.connections
        self.connect = partial(
            *(Connection, config, state, {}),
            traffic=Traffic((), log_access=False),
            bounds=bounds,
        )
        self.connection = self.connect()
        self.connection.connection_made(self.wire)

    async def _answer(self, scope, receive, send) -> None:
        try:
            while not self.received or self.received[-1].get("more_body"):
                self.received.append(await receive())
        except (QueueFull, BodyTimeout) as error:
            self.received.append({"type": error.code})
        await self.may_answer.wait()
        headers = [(b"content-length", b"%d" % len(self.body)), *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})

    async def until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)


async def test_a_body_is_received_as_a_whole_and_counts_until_the_answer():
    asked = Asked()
    asked.connection.data_received(POST % 600 + b"a" * 200)
    asked.connection.data_received(b"b" * 200)
    assert asked.budget.held == 400
    asked.connection.data_received(b"c" * 200)
    await asked.until(lambda: asked.received)
    [message] = asked.received
    assert message["body"] == b"a" * 200 + b"b" * 200 + b"c" * 200
    assert not message["more_body"]
    assert asked.budget.held == 600
    asked.may_answer.set()
    await asked.until(lambda: asked.wire.written.endswith(b"ok"))
    assert asked.budget.held == 0
    asked.connection.connection_lost(None)


async def test_a_body_without_room_is_dropped():
    asked = Asked()
    asked.budget.take(900)
    asked.connection.data_received(POST % 600 + b"a" * 50)
    asked.connection.data_received(b"a" * 100)
    await asked.until(lambda: asked.received)
    assert asked.received == [{"type": QueueFull.code}]
    asked.connection.data_received(b"a" * 450 + POST % 2 + b"ok")
    assert asked.budget.held == 900
    asked.may_answer.set()
    await asked.until(lambda: asked.wire.written.count(b"200 OK") == 2)
    asked.connection.connection_lost(None)


@pytest.mark.parametrize("sent", [POST % 600 + b"a" * 50, POST % 600])
async def test_a_body_that_stops_is_given_up(sent):
    asked = Asked(patience_s=0.01)
    asked.connection.data_received(sent)
    await asked.until(lambda: asked.received)
    assert asked.received == [{"type": BodyTimeout.code}]
    assert asked.budget.held == 0
    asked.connection.connection_lost(None)


def test_a_head_that_stops_is_given_up_and_so_is_an_idle_connection(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.01)

    async def ask(sent: bytes) -> None:
        asked = Asked()
        asked.connection.timeout_keep_alive = 0.01
        asked.may_answer.set()
        if sent:
            asked.connection.data_received(sent)
        await asked.until(lambda: asked.wire.closed)
        asked.connection.connection_lost(None)

    for sent in (b"", b"GET", POST % 2 + b"ok", POST % 2 + b"ok" + b"GET"):
        asyncio.run(ask(sent))


async def test_a_client_that_reads_nothing_is_cut_off_though_its_body_ends_behind_the_answer():
    asked = Asked(patience_s=0.1)
    asked.connection.connection_lost(None)
    # More than any kernel takes; and the body is not waited for.
    asked.body = bytes(64 << 20)
    asked.received.append({})
    asked.may_answer.set()
    server = await asyncio.get_running_loop().create_server(asked.connect, "127.0.0.1", 0)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(POST % 2 + b"{")
            await asked.until(lambda: any(each.flow.write_paused for each in asked.open))
            client.sendall(b"}")
            await asked.until(lambda: not asked.open)


async def test_a_client_that_reads_a_little_now_and_then_is_cut_off():
    asked = Asked(patience_s=1)
    asked.connection.connection_lost(None)
    asked.body = bytes(64 << 20)
    asked.may_answer.set()
    loop, listener = asyncio.get_running_loop(), socket.socket()
    # The kernel takes little at a time, as over a real line.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    async with await loop.create_server(asked.connect, sock=listener):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(listener.getsockname())
            client.sendall(POST % 2 + b"ok")
            await asked.until(lambda: any(each.flow.write_paused for each in asked.open))
            async with asyncio.timeout(60):
                while asked.open:
                    client.recv(700)
                    await asyncio.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it in time")
@pytest.mark.parametrize("leaves", [True, False])
async def test_a_client_that_has_left_is_known_before_its_body_is_used(leaves):
    asked = Asked()
    server = await asyncio.get_running_loop().create_server(asked.connect, "127.0.0.1", 0)
    async with server:
        # The kernel takes all this before the event loop looks.
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(POST % 5 + b"image")
            if leaves:
                client.close()
            await asked.until(lambda: asked.received)
    assert [each["type"] for each in asked.received] == [
        "http.disconnect" if leaves else "http.request"
    ]
    asked.may_answer.set()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it in time")
async def test_a_client_that_has_left_is_let_go_whatever_it_sent_ahead():
    asked = Asked()
    asked.connection.connection_lost(None)
    asked.may_answer.set()
    server = await asyncio.get_running_loop().create_server(asked.connect, "127.0.0.1", 0)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(POST % 5 + b"image" + b"x" * 100_000)
        await asked.until(lambda: asked.received)
        await asked.until(lambda: not asked.open)


@pytest.mark.parametrize("header", [(b"a", b"b\r\nc: d"), (b"a", b"b\nc"), (b"a\rb", b"")])
async def test_a_header_with_a_line_break_is_no_answer(header):
    asked = Asked()
    asked.headers.append(header)
    asked.may_answer.set()
    asked.connection.data_received(POST % 2 + b"ok")
    await asked.until(lambda: asked.wire.closed)
    assert asked.wire.written.startswith(b"HTTP/1.1 500 ")


LARGEST = 1 << 20


async def unpacked() -> None:
    packed = zlib.compress(bytes(4 * LARGEST))
    await unpack(packed, lambda size: None, LARGEST, partial(BodyTooLarge, "too large"))


async def received() -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": bytes(LARGEST - 1), "more_body": True}

    with Watch(receive, None, time.monotonic()) as watch:
        await watch.body(LARGEST, partial(BodyTooLarge, "too large"))


@pytest.mark.parametrize("over", [unpacked, received])
def test_what_a_body_over_its_limit_took_waits_for_no_collection(over):
    async def ten() -> None:
        for _ in range(10):
            try:
                await over()
            except BodyTooLarge:
                continue
            raise AssertionError("it was taken")

    gc.disable()
    tracemalloc.start()
    try:
        asyncio.run(ten())
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < 3 * LARGEST


HEAD = (
    b"POST %s HTTP/1.1\r\nHost: localhost\r\n"
    b"Inference-Header-Content-Length: 0\r\nContent-Length: %d\r\n\r\n"
)
TARGETS = (b"/v1/models/digits/predict", b"/v2/models/digits/infer") * 2


def test_an_answered_request_is_freed_at_once(app, service, runner, scene):
    async def ask() -> int:
        config, wire = Config(app, lifespan="off", log_config=None), Wire()
        bounds = Bounds(most=16, patience_s=60, budget=service.budget)
        connected = Connection(config, ServerState(), {}, traffic=service.traffic, bounds=bounds)
        connected.connection_made(wire)
        for count, target in enumerate(TARGETS, 1):
            connected.data_received(HEAD % (target, len(scene)) + scene)
            while wire.written.count(b"HTTP/1.1 200 OK") < count or connected.tasks:
                await asyncio.sleep(0.01)
        left = sum(isinstance(each, Exchange) for each in gc.get_objects())
        connected.connection_lost(None)
        return left

    gc.collect()
    gc.disable()
    try:
        # The last one is the connection's, until the next.
        assert runner.run(ask()) == 1
    finally:
        gc.enable()
