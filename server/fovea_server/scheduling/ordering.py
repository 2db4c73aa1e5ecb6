"""Answers in the order of their requests (`preserve_ordering`)."""

from __future__ import annotations

import asyncio

from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.wrapper import SchedulerWrapper
from fovea_server.tensors.messages import InferRequest, InferResponse


class OrderedScheduler(SchedulerWrapper):
    """Returns answers in the order in which their requests arrived."""

    def __init__(self, inside: Scheduler) -> None:
        super().__init__(inside)
        self._last: asyncio.Future[None] | None = None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request after all that came before it."""
        with self._gate.open_for(request):
            return await self._in_order(request)

    async def _in_order(self, request: InferRequest) -> InferResponse:
        before = self._last
        self._last = mine = asyncio.get_running_loop().create_future()
        try:
            return await self._inside.infer(request)
        finally:
            try:
                if before is not None and not before.done():
                    # Shielded: cancelling this request must not cancel the one before it.
                    await asyncio.shield(before)
            finally:
                # Keeps the order even if this request was cancelled.
                if before is None or before.done():
                    mine.set_result(None)
                else:
                    before.add_done_callback(lambda _: mine.set_result(None))
