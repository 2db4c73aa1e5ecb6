"""Loads and unloads models for requests, in separate threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fovea_server.models.registry import Registry

# Most threads wait for others that load the same model.
_THREADS = 8


class ModelControl:
    """Offers a registry's `load` and `unload` to the event loop.

    They take seconds and wait for one another, so they do not use the threads of other requests.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._threads = ThreadPoolExecutor(_THREADS, "model-control")

    async def load(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model; raises as `Registry.load`."""
        await self._run(partial(self._registry.load, name, config=config, files=files))

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model; raises as `Registry.unload`."""
        await self._run(partial(self._registry.unload, name, dependents=dependents))

    async def _run(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work)
