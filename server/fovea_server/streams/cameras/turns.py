"""Streams take turns at a model, so that it has time for others."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.models import Models


class Turns:
    """Lets as many frames of all streams together to a model as it computes side by side.

    Each stream takes its newest frame when it is its turn, and none grows old in the queue: where
    there are more frames than the model can see, they share it with clients one to one.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._places: dict[tuple[str, int], asyncio.Semaphore] = {}

    def of(self, name: str) -> AbstractAsyncContextManager[object]:
        """Return the turn of a frame at a model; of one that is not there, none is waited for."""
        try:
            engine = self._models.get(name).engine
        except FoveaError:
            return nullcontext()
        if engine is None:
            return nullcontext()
        session = engine.session
        most = session.concurrency * (session.max_batch if session.offloads else 1)
        return self._places.setdefault((name, most), asyncio.Semaphore(most))
