"""The base class of features, which add routes, metrics and background work to the server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_server.observability.histogram import Family

if TYPE_CHECKING:
    from fastapi import APIRouter


class Feature:
    """A feature of a running server. `app.py` creates all features.

    Subclasses override the methods that they need.
    """

    def router(self) -> APIRouter | None:
        """Return the routes of the feature, or None if it has none.

        The server calls this method once.
        """
        return None

    def families(self) -> Iterable[Family]:
        """Return the metrics of the feature."""
        return ()

    async def start(self) -> None:
        """Start background work. The server calls this method before the first request."""

    async def stop(self) -> None:
        """Stop background work. The server calls this method after the last request."""
