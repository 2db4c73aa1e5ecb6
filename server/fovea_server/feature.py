"""What a running server has beside its data plane: routes, metrics, and work of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_server.observability.histogram import Family

if TYPE_CHECKING:
    from fastapi import APIRouter


class Feature:
    """A part of a running server; `app.py` makes all of them. Each method may be left as it is."""

    def router(self) -> APIRouter | None:
        """Make its routes, once; None without any."""
        return None

    def families(self) -> Iterable[Family]:
        """Return the metrics."""
        return ()

    async def start(self) -> None:
        """Begin, before the first request."""

    async def stop(self) -> None:
        """End, after the last request."""
