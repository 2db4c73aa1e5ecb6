"""One gRPC call: its id, status and line in the log."""

from __future__ import annotations

import time
from typing import TypeAlias
from urllib.parse import unquote

import grpc

from fovea_preprocess.errors import FoveaError
from fovea_server.log_lines import REQUEST_ID
from fovea_server.status import grpc_status
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.request_id import HEADER, request_id
from fovea_server.traffic.traffic import Traffic

Context: TypeAlias = grpc.aio.ServicerContext

_PROBES = frozenset({"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"})


class Call:
    """Gives a call its id, which is sent in the trailing metadata.

    Attributes:
        status: name of the gRPC status.
        error: the error it answers with, if any.
        size: bytes of the answers.
        model: of the request, the latest of a stream; "" for none.
    """

    def __init__(self, method: str, context: Context, traffic: Traffic) -> None:
        self.status = "CANCELLED"
        self.error: FoveaError | None = None
        self.size = 0
        self.model = ""
        self._began = time.monotonic()
        self._method, self._context, self._traffic = method, context, traffic
        given = dict(context.invocation_metadata() or ()).get(HEADER)
        self._id = request_id(given if isinstance(given, str) else None)
        REQUEST_ID.set(self._id)
        context.set_trailing_metadata(((HEADER, self._id),))

    def fail(self, error: FoveaError) -> None:
        """Set the error that it ends with."""
        self.error, self.status = error, grpc_status(error)

    async def write(self, message: bytes) -> None:
        """Send one message of a stream."""
        self.size += len(message)
        await self._context.write(message)

    def close(self, message: object = None) -> None:
        """Log and count the call; `message` is its request, None if it could not be read."""
        method = self._method.rpartition("/")[2]
        model = getattr(message, "model_name", self.model)
        if not model and method.startswith("Model"):
            model = getattr(message, "name", "")
        if method == "ModelInfer":
            self._traffic.inferred(model, self.status, self._began, self.error)
        if self._traffic.access_log is None:
            return
        self._traffic.access_log.add(
            Access(
                _address(self._context.peer()),
                method,
                self._method,
                model,
                self.status,
                self.size,
                self._began,
                self._id,
            ),
            probe=method in _PROBES,
        )


def _address(peer: str) -> str:
    """Extract the address from `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]") or "-"
