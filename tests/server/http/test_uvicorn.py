"""The internals of uvicorn that our connections depend on: a new version is checked here."""

import asyncio
import inspect

import pytest
from tests.server.http.conftest import Wire
from uvicorn import Config, Server
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
)
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.streams import StreamReader

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
SCOPE = {
    *("type", "asgi", "http_version", "server", "client", "scheme", "root_path", "headers"),
    *("state", "method", "path", "raw_path", "query_string"),
}


async def silent(scope, receive, send) -> None:
    """An application that answers when its event is set, which is never."""
    await asyncio.Event().wait()


def names(method: object) -> list[str]:
    return list(inspect.signature(method).parameters)


# Hooks that our subclasses replace, or call with these arguments.
HOOKS = {
    HttpToolsProtocol: {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "data_received": ["data"],
        "_start_asgi_task": ["cycle", "app"],
        **dict.fromkeys(("handle_websocket_upgrade", "pause_writing", "resume_writing"), ()),
    },
    WebSocketsSansIOProtocol: {
        "data_received": ["data"],
        "connection_lost": ["exc"],
        "send": ["message"],
        "handle_cont": ["event"],
        **dict.fromkeys(("pause_writing", "resume_writing", "shutdown", "receive"), ()),
        **dict.fromkeys(("handle_events", "handle_parser_exception"), ()),
        **dict.fromkeys(("keepalive_timeout", "stop_keepalive", "send_receive_event_to_app"), ()),
    },
    StreamReader: {"read_exact": ["n"], "discard": []},
    Server: {
        "startup": ["sockets"],
        "shutdown": ["sockets"],
        "on_tick": ["counter"],
        "handle_exit": ["sig", "frame"],
    },
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_have_their_arguments(kind):
    for name, parameters in HOOKS[kind].items():
        assert names(getattr(kind, name)) == ["self", *parameters], name


def test_a_server():
    config = Config(silent, lifespan="off", log_config=None)
    server = Server(config)
    assert (server.started, server.should_exit, server.force_exit) == (False, False, False)
    config.load()
    assert (config.is_ssl, config.ssl) == (False, None)
    assert hasattr(config.lifespan_class(config), "shutdown")


async def test_a_websocket():
    config = Config(silent, interface="asgi3", ws="none", log_config=None)
    socket = WebSocketsSansIOProtocol(config, ServerState(), {})
    assert socket.loop is asyncio.get_running_loop()
    assert (socket.frames, socket.curr_msg_data_type) == ([], "bytes")
    assert (socket.close_timer, socket.pong_timer) == (None, None)
    assert (socket.handshake_initiated, socket.handshake_complete) == (False, False)
    assert (socket.close_sent, socket.disconnected, socket.read_paused) == (False, False, False)
    assert min(socket.ping_interval, socket.ping_timeout, socket.close_timeout) > 0
    assert socket.queue.empty()
    assert socket.writable.is_set()
    # The parser and the reader are replaced before the first byte.
    assert isinstance(socket.conn.reader, StreamReader)
    assert not socket.conn.reader.buffer
    assert inspect.isgenerator(socket.conn.parser)
    assert inspect.isgenerator(socket.conn.parse())
    assert (socket.conn.parser_exc, socket.conn.handshake_exc) == (None, None)
    assert (socket.conn.events, socket.conn.close_sent) == ([], None)


async def test_a_connection():
    assert STATUS_LINE[404] == b"HTTP/1.1 404 Not Found\r\n"
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
    assert (state.total_requests, state.default_headers) == (0, [])
    assert protocol.app_state == {}
    assert protocol.logger.name == "uvicorn.error"
    protocol.connection_made(Wire())
    assert (protocol.client, protocol.server, protocol.scheme) == (None, None, "http")
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
