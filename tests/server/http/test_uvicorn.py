"""The hooks of uvicorn that our connections replace: a new version might never call them."""

import inspect

import pytest
from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.streams import StreamReader

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
        assert [*inspect.signature(getattr(kind, name)).parameters] == ["self", *parameters], name
