"""grpc.health.v1, which Kubernetes' probes and load balancers ask.

As with Triton there is one answer for every service that is named. The messages are so small that
they are written by hand: field 1 of the answer is the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.grpc.call import Call, Context

_SERVING = bytes([1 << 3, 1])
_NOT_SERVING = bytes([1 << 3, 2])
# How long a change may go unnoticed by those who watch.
_LOOK_S = 0.5


class HealthCalls:
    """Reports whether the server is ready."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._closed = asyncio.Event()

    async def check(self, request: Any) -> bytes:
        """Check: now."""
        return _SERVING if self._plane.ready else _NOT_SERVING

    async def watch(self, requests: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Watch: now, and whenever it changes, until the server stops."""
        sent = b""
        while not self._closed.is_set():
            if (status := await self.check(None)) != sent:
                sent = status
                await call.write(sent)
            await _sleep(self._closed, _LOOK_S)
        if sent != _NOT_SERVING:
            await call.write(_NOT_SERVING)

    def close(self) -> None:
        """Tell those who watch that it is over."""
        self._closed.set()


async def _sleep(event: asyncio.Event, seconds: float) -> None:
    """Until the event, and no longer than that."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
