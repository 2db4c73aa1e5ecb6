"""The service grpc.health.v1, which Kubernetes' probes and load balancers call.

As in Triton, the answer is the same for every service. The messages are so small that
they are encoded by hand: field 1 of the answer is the status.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.grpc.calls import Call, Context

_SERVING = bytes([1 << 3, 1])
_NOT_SERVING = bytes([1 << 3, 2])
# Seconds between two checks of a watching call.
_LOOK_S = 0.5


class HealthCalls:
    """Reports whether the server is ready."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._closed = asyncio.Event()

    async def check(self, request: object) -> bytes:
        """Check: the status now."""
        return _SERVING if self._plane.ready else _NOT_SERVING

    async def watch(self, requests: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Watch: the status now and at each change, until the server stops."""
        sent = b""
        while not self._closed.is_set():
            if (status := await self.check(None)) != sent:
                sent = status
                await call.write(sent)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._closed.wait()
        if sent != _NOT_SERVING:
            await call.write(_NOT_SERVING)

    def close(self) -> None:
        """End the watching calls."""
        self._closed.set()
