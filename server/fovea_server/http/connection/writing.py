"""Answers on their way to a client: counted, and given up when it does not take them."""

from __future__ import annotations

import asyncio

from fovea_server.byte_budget import ByteBudget


class Writing:
    """What a connection has written, and the client has not taken yet.

    Args:
        loop: the event loop.
        budget: counts answers.
        timeout_s: how long a client may take nothing before the connection is cut off.
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
        """Count an answer that is about to be written.

        Raises:
            QueueFull: too much is held already.
        """
        self._budget.take(size)
        self._held += size

    def watch(self) -> None:
        """Look that the client takes what is left, from now on until nothing is."""
        self._left = self._transport.get_write_buffer_size()
        if self._timer is None and self._left:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def on_sent(self) -> None:
        """Nearly all is sent, or nothing will be."""
        self._budget.give_back(self._held)
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
            # A close would wait for the client.
            self._transport.abort()
