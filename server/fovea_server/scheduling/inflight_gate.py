"""Counts the requests in a scheduler, and refuses new ones once it closes."""

from __future__ import annotations

import time
from types import TracebackType

from fovea_preprocess.errors import ShuttingDown
from fovea_server.tensors.check import request_prefix
from fovea_server.tensors.messages import InferRequest


class InflightGate:
    """A context around each request, entered before its first `await`.

    Attributes:
        inside: number of requests in flight.
        locked: closed, and the time for requests in flight is over.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._closed = False
        self.locked = False

    def open_for(self, request: InferRequest) -> InflightGate:
        """Admit a request: use the result in a `with` statement.

        Raises:
            ShuttingDown: the gate is closed.
        """
        if self._closed:
            raise _stopped(request)
        return self

    def check(self, request: InferRequest) -> None:
        """Raise ShuttingDown if the time for requests in flight is over."""
        if self.locked:
            raise _stopped(request)

    def __enter__(self) -> None:
        self.inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inside -= 1

    def close(self, timeout_s: float) -> None:
        """Refuse new requests and wait for those in flight; blocks, up to the timeout."""
        self._closed = True
        until = time.monotonic() + timeout_s
        while self.inside and time.monotonic() < until:
            time.sleep(0.01)
        self.locked = True


def _stopped(request: InferRequest) -> ShuttingDown:
    return ShuttingDown(
        f"{request_prefix(request)}Server is stopping, scheduler for model has stopped accepting "
        "new inference requests"
    )
