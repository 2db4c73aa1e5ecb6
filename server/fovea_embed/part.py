"""The part of a server that turns texts into vectors, and counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_server.dataplane.service import ServerPart, Service
from fovea_server.statistics.family import Family

if TYPE_CHECKING:
    from fastapi import APIRouter


class EmbedPart(ServerPart):
    """Routes and metrics of models that read texts."""

    def __init__(self, service: Service) -> None:
        self._plane = service.plane

    def routes(self) -> APIRouter:
        """Make the routes."""
        from fovea_embed.routes import embed_routes

        return embed_routes()

    def families(self) -> Iterable[Family]:
        """Return how many texts were read, and how many of them by the network."""
        family = Family(
            "fovea_texts_total", "counter", "texts of requests, by where their vector was"
        )
        for model in self._plane:
            engine = model.engine
            if engine is not None and engine.words is not None:
                known = {"model": model.name, "version": str(model.version)}
                family.add(known | {"vector": "kept"}, engine.words.found)
                family.add(known | {"vector": "computed"}, engine.words.computed)
        return (family,)
