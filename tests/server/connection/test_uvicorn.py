"""The internals of uvicorn that our connections depend on: a new version is checked here."""

import asyncio
import inspect

import httptools
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def silent(scope, receive, send) -> None:
    """An application that answers when its event is set, which is never."""
    await asyncio.Event().wait()


def names(method: object) -> list[str]:
    return list(inspect.signature(method).parameters)


def test_what_connections_use_of_uvicorn():
    assert STATUS_LINE[404] == b"HTTP/1.1 404 Not Found\r\n"
    # Hooks that `Connection` replaces, or calls with these arguments.
    hooks = {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "data_received": ["data"],
        "send_400_response": ["msg"],
        "handle_websocket_upgrade": [],
        "on_headers_complete": [],
        "on_body": ["body"],
        "on_message_complete": [],
        "on_response_complete": [],
        "pause_writing": [],
        "resume_writing": [],
        "_unset_keepalive_if_required": [],
    }
    for name, parameters in hooks.items():
        assert names(getattr(HttpToolsProtocol, name)) == ["self", *parameters], name
    asyncio.run(_check_a_connection())


async def _check_a_connection() -> None:
    config = Config(silent, http="httptools", ws="none", lifespan="off", log_config=None)
    state = ServerState()
    protocol = HttpToolsProtocol(config=config, server_state=state, app_state={})
    # Attributes that are replaced or read.
    assert isinstance(protocol.parser, httptools.HttpRequestParser)
    assert protocol.cycle is None
    assert protocol.connections is state.connections
    assert protocol.ws_protocol_class is None
    assert protocol.loop is asyncio.get_running_loop()
    assert state.total_requests == 0
    protocol.connection_made(Wire())
    assert protocol.client is None
    assert isinstance(protocol.flow, FlowControl)
    assert (protocol.flow.read_paused, protocol.flow.write_paused) == (False, False)
    # A head begins a request, whose answer is written to `transport`.
    protocol.data_received(GET)
    first = protocol.cycle
    assert isinstance(first, RequestResponseCycle)
    assert (protocol.url, protocol.headers) == (b"/", [(b"host", b"test")])
    assert (first.more_body, first.response_started, first.response_complete) == (False,) * 3
    assert (first.keep_alive, first.disconnected) == (True, False)
    assert first.on_response == protocol.on_response_complete
    assert first.transport is protocol.transport
    # `shutdown` lets the newest request finish, and asks it to close the connection.
    protocol.shutdown()
    assert not protocol.cycle.keep_alive
    # A client that leaves: the request is told by these two.
    protocol.connection_lost(None)
    assert protocol.cycle.disconnected
    assert protocol.cycle.message_event.is_set()
    for task in state.tasks:
        task.cancel()
    # Bytes that are no request go to `send_400_response`.
    other = HttpToolsProtocol(config=config, server_state=state, app_state={})
    other.connection_made(Wire())
    other.data_received(b"no request\r\n\r\n")
    assert other.transport.written.startswith(STATUS_LINE[400])
    assert other.transport.is_closing()
