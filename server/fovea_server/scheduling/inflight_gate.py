"""Who is inside a scheduler, and when nobody may come in any more."""

from __future__ import annotations

import time
from types import TracebackType

from fovea_preprocess.errors import ShuttingDown
from fovea_server.tensors.check import request_prefix
from fovea_server.tensors.messages import InferRequest


class InflightGate:
    """A context around each request, entered before its first `await`; closed once.

    Attributes:
        inside: requests that have come in and not gone.
        locked: closed, and who is inside is not waited for any more.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._closed = False
        self.locked = False

    def open_for(self, request: InferRequest) -> InflightGate:
        """The context for a request that comes.

        Raises:
            ShuttingDown: it may not come in.
        """
        if self._closed:
            raise _stopped(request)
        return self

    def check(self, request: InferRequest) -> None:
        """Whether one who is inside is waited for still.

        Raises:
            ShuttingDown: the time for that is over.
        """
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
        """Let nobody in, and wait until all have gone, for so long; not on the event loop."""
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
