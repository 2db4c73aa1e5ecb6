"""Requests to a model whose gate is shut."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.server.scheduling.golden import Served
from tests.server.scheduling.served_images import ServedImages


class Askers:
    """Requests to a model whose gate is shut, and in which order they were answered."""

    def __init__(self, served: Served | ServedImages) -> None:
        self.served = served
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[object]] = {}

    async def send(self, name: str, **fields: Any) -> None:
        self.tasks[name] = asyncio.create_task(self._ask(name, **fields))
        await asyncio.sleep(0)

    async def _ask(self, name: str, **fields: Any) -> object:
        response = await self.served.ask(id=name, **fields)
        self.order.append(name)
        return response

    async def answers(self) -> list[object]:
        self.served.gate.open.set()
        return await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def dynamic(**values: Any) -> Callable[[Any], None]:
    """A change of the dynamic batching of a model."""

    def change(config: Any) -> None:
        for name, value in values.items():
            if name == "preferred_batch_size":
                config.dynamic_batching.preferred_batch_size[:] = [value]
            else:
                setattr(config.dynamic_batching, name, value)

    return change
