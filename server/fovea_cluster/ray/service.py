"""The methods that Ray's gRPC proxy takes: those of Triton's service, with messages as bytes.

The proxy would read each message, and pickle it; messages of tritonclient cannot be pickled.
"""

from __future__ import annotations

import grpc

from fovea_server.grpc.server import INFERENCE, METHODS

STREAM = "ModelStreamInfer"
NAMES = ("ModelInfer", STREAM, *METHODS)

ADD_TO_SERVER = f"{__name__}.add_to_server"
"""For `grpc_servicer_functions` of Ray's `grpc_options`."""


def add_to_server(servicer: object, server: grpc.aio.Server) -> None:
    """Add the methods to a server of Ray's, which replaces their functions by its own."""
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(getattr(servicer, name))
        if name == STREAM
        else grpc.unary_unary_rpc_method_handler(getattr(servicer, name))
        for name in NAMES
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handlers),))
