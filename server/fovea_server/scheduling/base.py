"""The interface between transports and the engines that answer tensors."""

from __future__ import annotations

from typing import Protocol

from fovea_server.tensors.messages import InferRequest, InferResponse


class Scheduler(Protocol):
    """Queues requests, forms batches, and returns the answers."""

    @property
    def identity(self) -> bytes:
        """Identify the loaded model: the value changes when a part of it is loaded again."""
        ...

    @property
    def failure(self) -> str | None:
        """The reason why it can never answer again; None while it can."""
        ...

    @property
    def pending(self) -> int:
        """Number of requests accepted and not yet given to an engine."""
        ...

    @property
    def inflight(self) -> int:
        """Number of requests accepted and not yet answered."""
        ...

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; cancelling this frees its place in the queue.

        Raises:
            InvalidRequest: it does not fit the model; Triton's text.
            QueueFull: the queue is full, or the request waited longer than its timeout.
            ModelNotReady, ShuttingDown: the model cannot answer any more.
            InferenceFailed: the engine refused or broke.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests within the timeout, then stop. The engine stays open."""
        ...


class HasScheduler(Protocol):
    """A model that answers requests."""

    @property
    def scheduler(self) -> Scheduler:
        """Its scheduler."""
        ...
