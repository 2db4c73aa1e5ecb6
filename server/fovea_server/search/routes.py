"""The route that finds the images of an index that are most like those of a request."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from fovea_client import Match
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions, check_texts
from fovea_engines.session import Array
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_server.dataplane.prediction import Prediction, PredictRequest
from fovea_server.http.v1.answers import error_json, raise_if_alone
from fovea_server.http.v1.body import parsed_body
from fovea_server.http.v1.head import timeout_of
from fovea_server.http.v1.route import (
    ModelName,
    Version,
    answered,
    call_of,
    fetched,
    inferring,
    service_of,
)
from fovea_server.models.model import ServedModel
from fovea_server.search.documents import MATCHES, described_search, described_words
from fovea_server.search.identity import ModelIdentity
from fovea_server.search.index import (
    DEFAULT,
    MAX_MATCHES,
    VectorIndex,
    check_name,
    command_for,
)

FindIndex = Callable[[Path, str], VectorIndex]
"""Returns an index of the model in a folder, by name."""

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def search_routes(find: FindIndex) -> APIRouter:
    """Make the routes: of the current version of a model, and of one that is named."""
    router = APIRouter(tags=["search"], dependencies=[inferring])

    @router.post("/v1/models/{name}/search", **described_search("search"))
    async def search(request: Request, name: ModelName) -> Response:
        """Find the images of an index that are most like an image."""
        return await _search(request, name, None, find)

    @router.post(
        "/v1/models/{name}/versions/{version}/search", **described_search("search_version")
    )
    async def search_version(request: Request, name: ModelName, version: Version) -> Response:
        """Find the images of an index that are most like an image, with one version of a model."""
        return await _search(request, name, version, find)

    @router.get("/v1/models/{name}/search", **described_words("search_words"))
    async def search_words(request: Request, name: ModelName) -> Response:
        """Find the images of an index that are most like words."""
        return await _search_words(request, name, None, find)

    @router.get(
        "/v1/models/{name}/versions/{version}/search", **described_words("search_words_version")
    )
    async def search_words_version(request: Request, name: ModelName, version: Version) -> Response:
        """Find the images of an index that are most like words, with one version of a model."""
        return await _search_words(request, name, version, find)

    return router


async def _search_words(
    request: Request, name: str, version: int | None, find: FindIndex
) -> Response:
    service, given = service_of(request), _given(request)
    model, began = service.models.get(name, version), time.monotonic()
    text = given.pop("text", "")
    check_texts([text])
    index_name, most, pictures = _options(given)
    _check_task(model)
    index = await run_in_threadpool(find, model.folder.parent, index_name)
    mending = f"build the index again with `{command_for(name, index_name, version)}`"
    _check_model(index, model, mending)
    timeout_s = timeout_of(request.headers.get("x-request-timeout-ms"))
    call_of(request).enter()
    [read] = await service.plane.read_texts(model, version, [text], timeout_s=timeout_s)
    found = await run_in_threadpool(_nearest, index, read.unit, most, mending, thumbnails=pictures)
    timing = {"total": round(1e3 * (time.monotonic() - began), 3)}
    return _answer(model.name, model.version, index_name, index, [found], timing)


def _answer(
    model: str,
    version: int,
    index_name: str,
    index: VectorIndex,
    matches: list[Any],
    timing_ms: Mapping[str, object],
) -> Response:
    document = {
        "model": model,
        "version": str(version),
        "index": index_name,
        "size": len(index.names),
        "images": matches,
        "timing_ms": timing_ms,
    }
    return Response(orjson.dumps(document), media_type="application/json")


async def _search(request: Request, name: str, version: int | None, find: FindIndex) -> Response:
    service = service_of(request)
    model = service.models.get(name, version)
    index_name, most, pictures = _options(_given(request))
    _check_task(model)
    # A missing index is told before an image is received.
    index = await run_in_threadpool(find, model.folder.parent, index_name)
    mending = f"build the index again with `{command_for(name, index_name, version)}`"
    _check_model(index, model, mending)
    timeout_s = timeout_of(request.headers.get("x-request-timeout-ms"))

    async def work(body: bytes) -> Response:
        kind = request.headers.get("content-type", "")
        sources, options = await parsed_body(
            body, kind, {}, service.settings.max_images, service.json
        )
        if options != PredictOptions():
            raise InvalidOption("a search has no options but those in its address")
        images = await fetched(request, sources)
        call_of(request).enter()
        # It may have been replaced while the images were arriving.
        serving = service.models.get(name, version)
        _check_model(index, serving, mending)
        asked = PredictRequest(serving, version, images, options, timeout_s=timeout_s)
        found = await service.plane.predict(asked)
        raise_if_alone(found, images, kind)
        matches = await run_in_threadpool(
            _matches, index, found, most, mending, thumbnails=pictures
        )
        return _answer(found.model, found.version, index_name, index, matches, found.timing_ms())

    return await answered(request, work, timeout_s)


def _check_task(model: ServedModel) -> None:
    model.check_ready()
    if model.task != "embed":
        raise InvalidOption(
            f"the task of model '{model.name}' is {model.task}, and a search takes one whose task "
            "is embed"
        )


def _check_model(index: VectorIndex, model: ServedModel, mending: str) -> None:
    engine = model.engine
    if engine is None or index.model is None:
        return
    if (how := index.model.difference(ModelIdentity.of(engine.card))) is not None:
        raise InvalidOption(
            f"the vectors of the index were made {how} than that of model '{model.name}', version "
            f"{model.version}, and cannot be compared with its own: {mending}"
        )


def _given(request: Request) -> dict[str, str]:
    query = request.query_params
    for name in query:
        if (count := len(query.getlist(name))) > 1:
            raise InvalidOption(f"{name[:60]} is given {count} times; a search takes one")
    return dict(query)


def _options(given: Mapping[str, str]) -> tuple[str, int, bool]:
    """Read the name of the index, the number of matches, and whether thumbnails are wanted.

    InvalidOption if one is wrong.
    """
    if unknown := sorted(given.keys() - {"index", "k", "thumbnails"}):
        raise InvalidOption(f"'{unknown[0][:60]}' is not an option; options: index, k, thumbnails")
    text = given.get("k", str(MATCHES))
    # Python refuses to read numbers of thousands of digits.
    most = int(text.lstrip("0")[:5] or 0) if text.isascii() and text.isdigit() else 0
    if not 1 <= most <= MAX_MATCHES:
        raise InvalidOption(f"k is '{text[:60]}'; it must be a whole number, 1 to {MAX_MATCHES}")
    pictures = _FLAGS.get(given.get("thumbnails", "false").lower())
    if pictures is None:
        raise InvalidOption(f"thumbnails is '{given['thumbnails'][:60]}'; it must be true or false")
    return check_name(given.get("index", DEFAULT)), most, pictures


def _matches(
    index: VectorIndex, prediction: Prediction, most: int, mending: str, *, thumbnails: bool
) -> list[Any]:
    found: list[Any] = []
    for image in prediction.images:
        if isinstance(image, FoveaError):
            found.append(orjson.Fragment(error_json(image)))
            continue
        assert isinstance(image.found, Embedding), "the task says so"
        found.append(_nearest(index, image.found.unit, most, mending, thumbnails=thumbnails))
    return found


def _nearest(
    index: VectorIndex, vector: Array, most: int, mending: str, *, thumbnails: bool
) -> dict[str, object]:
    try:
        nearest = index.nearest(vector, most, thumbnails=thumbnails)
    except ValueError as error:
        raise InvalidOption(
            f"the index does not belong to the model: {error}; {mending}"
        ) from error
    return {"matches": [_json(each) for each in nearest]}


def _json(match: Match) -> dict[str, object]:
    picture = match.thumbnail
    shown = {} if picture is None else {"thumbnail": base64.b64encode(picture).decode()}
    return {"name": match.name, "score": match.score} | shown
