"""Who is inside a scheduler, and when nobody may come in any more."""

from __future__ import annotations

import time
from types import TracebackType

from fovea_preprocess.errors import ShuttingDown
from fovea_server.v2.check import request_prefix
from fovea_server.v2.messages import InferRequest


class Door:
    """A context around each request; closed once.

    Attributes:
        inside: requests that have come in and not gone.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._closed = False

    def check(self, request: InferRequest) -> None:
        """Whether it may come in.

        Raises:
            ShuttingDown: it may not.
        """
        if self._closed:
            raise ShuttingDown(
                f"{request_prefix(request)}Server is stopping, scheduler for model has stopped "
                "accepting new inference requests"
            )

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
