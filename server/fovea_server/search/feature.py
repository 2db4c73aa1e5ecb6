"""Routes for similarity search by image and by text, their schemas, and the cache of indexes."""

from __future__ import annotations

import base64
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions, check_texts
from fovea_engines.session import Array
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_server.dataplane.prediction import Prediction, PredictRequest
from fovea_server.feature import Feature
from fovea_server.http.v1.answers import error_json, raise_if_alone
from fovea_server.http.v1.body import empty, parsed_body
from fovea_server.http.v1.dependencies import (
    ModelName,
    Version,
    answer_body,
    call_of,
    fetch_images,
    inferring,
    service_of,
)
from fovea_server.http.v1.openapi import describe_images
from fovea_server.http.v1.request_head import timeout_of
from fovea_server.http.v1.schemas import Absent, ErrorDetail, TimingMs
from fovea_server.models.model import ServedModel
from fovea_server.search.index import (
    DEFAULT,
    MAX_MATCHES,
    ModelIdentity,
    Neighbour,
    VectorIndex,
    check_name,
    command_for,
    find_index,
)

# Default number of matches for each image.
_DEFAULT_K = 10

# Function that returns an index, given the directory of its model and its name.
_FindIndex = Callable[[Path, str], VectorIndex]


class Match(BaseModel):
    """An image of an index. The score is the cosine similarity of both embeddings, -1 to 1."""

    name: str
    score: float = Field(description="cosine of the two embeddings, -1 to 1", ge=-1, le=1)
    thumbnail: str | Absent = Field(
        None,
        description=(
            "JPEG file as base64, with the option thumbnails and if the index has thumbnails"
        ),
    )


class ImageMatches(BaseModel):
    """The matches of one image in a request, or its `error`."""

    matches: list[Match] | Absent = Field(None, description="best first")
    error: ErrorDetail | Absent = Field(None, description="error of this image")


class SearchAnswer(BaseModel):
    """The most similar images of an index, for each image of a request in order."""

    model: str
    version: str
    index: str = Field(description="name of the index")
    size: int = Field(description="number of compared images")
    images: list[ImageMatches]
    timing_ms: TimingMs


_PARAMETERS = [
    {
        "name": "k",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_MATCHES},
        "description": f"most matches of an image; default {_DEFAULT_K}",
    },
    {
        "name": "index",
        "in": "query",
        "required": False,
        "schema": {"type": "string"},
        "description": f"name of the index; default {DEFAULT}",
    },
    {
        "name": "thumbnails",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean"},
        "description": "include the thumbnails of matches, if the index has them",
    },
]
_TEXT = {
    "name": "text",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "words, of a model of images and texts such as CLIP",
    "example": "a red seven",
}
_EXAMPLE = {
    "model": "reid",
    "version": "1",
    "index": "index",
    "size": 1200,
    "images": [
        {
            "matches": [
                {"name": "anna/03.jpg", "score": 0.91344},
                {"name": "anna/11.jpg", "score": 0.89702},
            ]
        }
    ],
    "timing_ms": {
        "decode": 1.2,
        "letterbox": 0.3,
        "queue": 0.1,
        "infer": 9.8,
        "postprocess": 0.0,
        "total": 11.5,
    },
}


def _described_search(operation_id: str) -> dict[str, Any]:
    errors = 400, 403, 404, 413, 422, 429, 503, 504
    made = describe_images(
        operation_id, SearchAnswer, "application/octet-stream", _PARAMETERS, *errors
    )
    example = {"application/json": {"examples": {"matches": {"value": _EXAMPLE}}}}
    made["responses"][200] = {"content": example}
    made["responses"][404]["description"] = "no such model, version or index"
    return made


def _described_words(operation_id: str) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, for a search route without a request body."""
    made = _described_search(operation_id)
    extra = made["openapi_extra"]
    del extra["requestBody"]
    extra["parameters"] = [_TEXT, *extra["parameters"]]
    return made


# Largest number of indexes in memory. An index of 100,000 embeddings with 512 values takes 200 MB.
_MAX_INDEXES = 4


class Search(Feature):
    """Server feature: search routes. The indexes that were used last stay in memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, int, int], VectorIndex] = OrderedDict()
        self._reading: dict[Path, Lock] = {}
        self._lock = Lock()

    def index(self, folder: Path, name: str) -> VectorIndex:
        """Return an index in a model's directory. Read the file only if it has changed.

        Raises:
            InvalidOption: `name` is not the name of an index.
            NotFound: the index does not exist.
            InvalidModel: the file is damaged.
        """
        path = find_index(folder, name)
        with self._lock:
            reading = self._reading.setdefault(path, Lock())
        # One thread at a time reads a file, because a second reader would need the memory of the
        # index again.
        with reading:
            file = path.stat()
            key = path, file.st_mtime_ns, file.st_size
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            made = VectorIndex.read(path)
            with self._lock:
                for other in [each for each in self._kept if each[0] == path]:
                    del self._kept[other]
                self._kept[key] = made
                while len(self._kept) > _MAX_INDEXES:
                    self._kept.popitem(last=False)
            return made

    def router(self) -> APIRouter:
        """Return the search routes."""
        return _search_routes(self.index)

    async def stop(self) -> None:
        """Release the indexes in memory."""
        self._kept.clear()


def _search_routes(find: _FindIndex) -> APIRouter:
    """Return the search routes, for the current version of a model and for a given version."""
    router = APIRouter(tags=["search"], dependencies=[inferring])

    @router.post("/v1/models/{name}/search", **_described_search("search"))
    async def search(request: Request, name: ModelName) -> Response:
        """Find the images of an index that are most similar to an image."""
        return await _search(request, name, None, find)

    @router.post(
        "/v1/models/{name}/versions/{version}/search", **_described_search("search_version")
    )
    async def search_version(request: Request, name: ModelName, version: Version) -> Response:
        """Find the images of an index that are most similar to an image, with one model version."""
        return await _search(request, name, version, find)

    @router.get("/v1/models/{name}/search", **_described_words("search_words"))
    async def search_words(request: Request, name: ModelName) -> Response:
        """Find the images of an index that are most similar to a text."""
        return await _search_words(request, name, None, find)

    @router.get(
        "/v1/models/{name}/versions/{version}/search", **_described_words("search_words_version")
    )
    async def search_words_version(request: Request, name: ModelName, version: Version) -> Response:
        """Find the images of an index that are most similar to a text, with one model version."""
        return await _search_words(request, name, version, find)

    return router


async def _search(request: Request, name: str, version: int | None, find: _FindIndex) -> Response:
    service = service_of(request)
    model = service.models.get(name, version)
    index_name, most, pictures = _search_options(_given(request))
    # Check the index first, so that an error is returned before the images arrive.
    index, mending = await _index_of(model, version, index_name, find)
    timeout_s = timeout_of(request.headers.get("x-request-timeout-ms"))

    async def work(body: bytes) -> Response:
        if not body:
            raise empty()
        kind = request.headers.get("content-type", "")
        sources, options = await parsed_body(
            body, kind, {}, service.settings.max_images, service.json
        )
        if options != PredictOptions():
            raise InvalidOption(
                "the body of a search must contain only images: send options in the URL"
            )
        images = await fetch_images(request, sources)
        call_of(request).enter()
        # Look up the model again, because it may have been replaced while the images arrived.
        serving = service.models.get(name, version)
        _check_model(index, serving, mending)
        asked = PredictRequest(serving, version, images, options, timeout_s=timeout_s)
        found = await service.plane.predict(asked)
        raise_if_alone(found, images, kind)
        matches = await run_in_threadpool(
            _image_matches, index, found, most, mending, thumbnails=pictures
        )
        return _answer(found.model, found.version, index_name, index, matches, found.timing_ms())

    return await answer_body(request, work, timeout_s)


async def _search_words(
    request: Request, name: str, version: int | None, find: _FindIndex
) -> Response:
    service, given = service_of(request), _given(request)
    model, began = service.models.get(name, version), time.monotonic()
    text = given.pop("text", "")
    check_texts([text])
    index_name, most, pictures = _search_options(given)
    index, mending = await _index_of(model, version, index_name, find)
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


async def _index_of(
    model: ServedModel, version: int | None, index_name: str, find: _FindIndex
) -> tuple[VectorIndex, str]:
    """Return an index of a model, and advice for the error if the index belongs to another model.

    Raises:
        ModelNotReady: the model is not ready.
        NotFound: the index does not exist.
        InvalidOption: the model does not compute embeddings, or the index belongs to another model.
    """
    model.check_ready()
    if model.task != "embed":
        raise InvalidOption(
            f"model '{model.name}' has the task {model.task}, but a search needs a model with the "
            "task embed"
        )
    index = await run_in_threadpool(find, model.folder.parent, index_name)
    mending = f"build the index again with `{command_for(model.name, index_name, version)}`"
    _check_model(index, model, mending)
    return index, mending


def _check_model(index: VectorIndex, model: ServedModel, mending: str) -> None:
    engine = model.engine
    if engine is None or index.model is None:
        return
    if (how := index.model.difference(ModelIdentity.of(engine.card))) is not None:
        raise InvalidOption(
            f"the index does not fit version {model.version} of model '{model.name}', because it "
            f"was built with {how}: {mending}"
        )


def _given(request: Request) -> dict[str, str]:
    query = request.query_params
    for name in query:
        if (count := len(query.getlist(name))) > 1:
            raise InvalidOption(f"the option {name[:60]} is given {count} times: give it once")
    return dict(query)


_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def _search_options(given: Mapping[str, str]) -> tuple[str, int, bool]:
    """Return the name of the index, the number of matches, and whether thumbnails are requested.

    Raises:
        InvalidOption: an option is unknown or invalid.
    """
    if unknown := sorted(given.keys() - {"index", "k", "thumbnails"}):
        raise InvalidOption(
            f"'{unknown[0][:60]}' is an unknown search option: the options are index, k and "
            "thumbnails"
        )
    text = given.get("k", str(_DEFAULT_K))
    # Use five digits at most, because Python rejects numbers with thousands of digits.
    most = int(text.lstrip("0")[:5] or 0) if text.isascii() and text.isdigit() else 0
    if not 1 <= most <= MAX_MATCHES:
        raise InvalidOption(
            f"k is '{text[:60]}', but must be a whole number from 1 to {MAX_MATCHES}"
        )
    pictures = _FLAGS.get(given.get("thumbnails", "false").lower())
    if pictures is None:
        raise InvalidOption(
            f"thumbnails is '{given['thumbnails'][:60]}', but must be true or false"
        )
    return check_name(given.get("index", DEFAULT)), most, pictures


def _image_matches(
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
        raise InvalidOption(f"the index does not fit the model: {error}; {mending}") from error
    return {"matches": [_match_json(each) for each in nearest]}


def _match_json(match: Neighbour) -> dict[str, object]:
    picture = match.thumbnail
    shown = {} if picture is None else {"thumbnail": base64.b64encode(picture).decode()}
    return {"name": match.name, "score": match.score} | shown
