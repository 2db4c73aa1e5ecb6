"""Routes that compute text embeddings, and the metrics of text embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, create_model

from fovea_engines.results.options import PredictOptions, VectorFormat
from fovea_engines.results.vocabulary import NO_NAMES
from fovea_server.dataplane.models import Models
from fovea_server.feature import Feature
from fovea_server.http.v1.body import parse_texts
from fovea_server.http.v1.dependencies import (
    ModelName,
    Version,
    answer_body,
    call_of,
    inferring,
    parse_json_body,
    service_of,
)
from fovea_server.http.v1.openapi import describe_route
from fovea_server.http.v1.request_head import timeout_of
from fovea_server.http.v1.schemas import Embedding
from fovea_server.observability.histogram import Family


class TextVector(BaseModel):
    """The embedding of one text."""

    embedding: Embedding


class TextAnswer(BaseModel):
    """The embeddings of the texts in a request, in their order."""

    model: str
    version: str
    texts: list[TextVector]


_OPTIONS = PredictOptions.__dataclass_fields__
TextRequest = create_model(
    "TextRequest",
    __doc__="Texts to turn into vectors, by a model of images and texts.",
    text=(str | list[str], Field(description="a text, or a list of up to 1000 texts")),
    normalize=(bool, Field(True, **_OPTIONS["normalize"].metadata)),
    vector=(VectorFormat, Field("base64", **_OPTIONS["vector"].metadata)),
)

_REQUEST = {"text": ["a red seven", "a blue two"], "vector": "list"}
_VECTOR = {"norm": 10.31, "normalised": True, "numbers": [0.6, -0.8]}
_ANSWER = {"model": "clip", "version": "1", "texts": [{"embedding": _VECTOR}] * 2}


def _describe_route(operation_id: str) -> dict[str, Any]:
    schema = {"schema": TextRequest.model_json_schema()} | _example(_REQUEST)
    body = {"required": True, "description": "texts", "content": {"application/json": schema}}
    errors = 400, 403, 404, 413, 422, 429, 503, 504
    made = describe_route(operation_id, TextAnswer, *errors) | {
        "openapi_extra": {"requestBody": body}
    }
    made["responses"][200] = {"content": {"application/json": _example(_ANSWER)}}
    return made


def _example(value: object) -> dict[str, Any]:
    return {"examples": {"texts": {"value": value}}}


def embed_routes() -> APIRouter:
    """Return the routes for the current version of a model and for a given version."""
    router = APIRouter(tags=["search"], dependencies=[inferring])

    @router.post("/v1/models/{name}/embed", **_describe_route("embed"))
    async def embed(request: Request, name: ModelName) -> Response:
        """Compute embeddings of texts, which can be compared with embeddings of images."""
        return await _embed(request, name, None)

    @router.post("/v1/models/{name}/versions/{version}/embed", **_describe_route("embed_version"))
    async def embed_version(request: Request, name: ModelName, version: Version) -> Response:
        """Compute embeddings of texts with a given version of a model."""
        return await _embed(request, name, version)

    return router


async def _embed(request: Request, name: str, version: int | None) -> Response:
    service = service_of(request)
    model = service.models.get(name, version)
    timeout_s = timeout_of(request.headers.get("x-request-timeout-ms"))

    async def work(body: bytes) -> Response:
        if model.engine is not None:
            model.engine.require_words()
        texts, options = await parse_json_body(request, body, parse_texts)
        call_of(request).enter()
        read = await service.plane.read_texts(model, version, texts, timeout_s=timeout_s)
        document = {
            "model": model.name,
            "version": str(model.version),
            "texts": [each.to_json(NO_NAMES, options) for each in read],
        }
        return Response(orjson.dumps(document), media_type="application/json")

    return await answer_body(request, work, timeout_s)


class Texts(Feature):
    """Server feature: routes and metrics of models with a text encoder."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def router(self) -> APIRouter:
        """Return the routes for text embeddings."""
        return embed_routes()

    def families(self) -> Iterable[Family]:
        """Return the numbers of text embeddings from the cache and of computed ones."""
        family = Family(
            "fovea_texts_total", "counter", "texts of requests, by cache hit or computation"
        )
        for model in self._models:
            engine = model.engine
            if engine is not None and engine.words is not None:
                known = {"model": model.name, "version": str(model.version)}
                family.add(known | {"vector": "kept"}, engine.words.found)
                family.add(known | {"vector": "computed"}, engine.words.computed)
        return (family,)
