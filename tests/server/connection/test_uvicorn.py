"""The internals of uvicorn that our connections depend on: a new version is checked here."""

import asyncio
import inspect

from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
)
from uvicorn.server import ServerState

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
SCOPE = {
    *("type", "asgi", "http_version", "server", "client", "scheme", "root_path", "headers"),
    *("state", "method", "path", "raw_path", "query_string"),
}


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
        "on_response_complete": [],
        "pause_writing": [],
        "resume_writing": [],
        "_start_asgi_task": ["cycle", "app"],
    }
    for name, parameters in hooks.items():
        assert names(getattr(HttpToolsProtocol, name)) == ["self", *parameters], name
    asyncio.run(_check_a_connection())


async def _check_a_connection() -> None:
    config = Config(silent, interface="asgi3", ws="none", proxy_headers=False, log_config=None)
    state = ServerState()
    protocol = HttpToolsProtocol(config=config, server_state=state, app_state={})
    # Attributes that are replaced or read.
    assert protocol.cycle is None
    assert protocol.app is silent
    assert protocol.asgi_version
    assert protocol.connections is state.connections
    assert protocol.ws_protocol_class is None
    assert protocol.timeout_keep_alive == config.timeout_keep_alive
    assert protocol.loop is asyncio.get_running_loop()
    assert state.total_requests == 0
    protocol.connection_made(Wire())
    assert (protocol.client, protocol.scheme) == (None, "http")
    assert isinstance(protocol.flow, FlowControl)
    assert (protocol.flow.read_paused, protocol.flow.write_paused) == (False, False)
    # A head begins a request, with this scope; `_start_asgi_task` calls `run_asgi`.
    protocol.data_received(GET)
    first = protocol.cycle
    assert protocol.url == b"/"
    assert first.scope.keys() == SCOPE
    assert names(first.run_asgi) == ["app"]
    assert len(state.tasks) == 1
    # `shutdown` lets the newest request finish, and asks it to close the connection.
    assert (first.keep_alive, first.response_complete) == (True, False)
    protocol.shutdown()
    assert not first.keep_alive
    # A client that leaves: the request is told by these two.
    assert not first.disconnected
    protocol.connection_lost(None)
    assert first.disconnected
    assert first.message_event.is_set()
    for task in state.tasks:
        task.cancel()
