"""A double for Ray's handle of a deployment, because a real one needs a cluster."""

import asyncio
from collections.abc import Callable
from typing import Any


class Handle:
    """Calls a function in the place of each replica; `calls` are the requests that were sent."""

    def __init__(self, replica: Callable[..., Any]) -> None:
        self._replica = replica
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, method: str) -> "Handle":
        return self

    def remote(self, *given: Any) -> asyncio.Future[Any]:
        self.calls.append(given)
        return asyncio.ensure_future(self._replica(*given))

    def broadcast(self, method: str, *given: Any) -> "Handle":
        self._broadcast = given
        return self

    async def results_async(self) -> list[Any]:
        return [await self.remote(*self._broadcast)]
