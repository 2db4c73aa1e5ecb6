"""Turns texts into vectors, and counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_server.dataplane.models import Models
from fovea_server.feature import Feature
from fovea_server.observability.family import Family

if TYPE_CHECKING:
    from fastapi import APIRouter


class Texts(Feature):
    """Routes and metrics of models that read texts."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def router(self) -> APIRouter:
        """Make the routes."""
        from fovea_server.search.embedding_routes import embed_routes

        return embed_routes()

    def families(self) -> Iterable[Family]:
        """Return how many texts were read, and how many of them by the network."""
        family = Family(
            "fovea_texts_total", "counter", "texts of requests, by where their vector was"
        )
        for model in self._models:
            engine = model.engine
            if engine is not None and engine.words is not None:
                known = {"model": model.name, "version": str(model.version)}
                family.add(known | {"vector": "kept"}, engine.words.found)
                family.add(known | {"vector": "computed"}, engine.words.computed)
        return (family,)
