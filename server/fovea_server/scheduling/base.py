"""The seam between who asks for tensors and who computes them."""

from __future__ import annotations

from typing import Protocol

from fovea_server.tensors.messages import InferRequest, InferResponse


class Scheduler(Protocol):
    """Lets requests wait, meet in batches, and be answered."""

    @property
    def identity(self) -> bytes:
        """Its own as long as it answers the same; another after a part of it was loaded again."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it can never answer again; None while it can."""
        ...

    @property
    def pending(self) -> int:
        """Requests accepted and not yet given to an engine."""
        ...

    @property
    def inflight(self) -> int:
        """Requests accepted and not yet answered."""
        ...

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; cancelling this gives its place in the queue to others.

        Raises:
            InvalidRequest: it does not fit the model; Triton's text.
            QueueFull: the queue is full, or the request waited for longer than it may.
            ModelNotReady, ShuttingDown: the model cannot answer any more.
            InferenceFailed: the engine refused or broke.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, for so long, then stop. The engine stays open."""
        ...


class HasScheduler(Protocol):
    """A model that can be asked."""

    @property
    def scheduler(self) -> Scheduler:
        """What answers."""
        ...
