"""Counts unsent answers, and cuts off clients that do not read them."""

from __future__ import annotations

import asyncio

from fovea_server.byte_budget import ByteBudget


class Writing:
    """The bytes that a connection has written, and the client has not read yet.

    The connection is cut off after `timeout_s` without progress.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        budget: ByteBudget,
        timeout_s: float,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._budget = budget
        self._timeout_s = timeout_s
        self._held = 0
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, size: int) -> None:
        """Count an answer that is about to be written; raise QueueFull if too much is held."""
        if not self._budget.has_room(size):
            raise self._budget.full()
        self._budget.count_answer(size)
        self._held += size

    def watch(self) -> None:
        """Watch the client's progress until everything is sent."""
        self._left = self._transport.get_write_buffer_size()
        if self._timer is None and self._left:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def on_sent(self) -> None:
        """Release the bytes: nearly all is sent, or nothing will be."""
        self._budget.count_answer(-self._held)
        self._held = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        before = self._left
        if self._transport.get_write_buffer_size() < before:
            self.watch()
        elif before:
            # A normal close would wait for the client.
            self._transport.abort()
