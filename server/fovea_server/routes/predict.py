"""Image in, boxes out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import orjson
from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from fovea_engines.draw import draw, encode
from fovea_engines.options import PredictOptions
from fovea_preprocess.errors import FetchRefused, FoveaError, InvalidOption, InvalidRequest
from fovea_server.answer import prediction_json
from fovea_server.dataplane import DataPlane, Prediction
from fovea_server.job import ImageResult
from fovea_server.parse import Source, Url, parse_body
from fovea_server.routes.body import read_body
from fovea_server.routes.openapi import PREDICT
from fovea_server.settings import Settings

if TYPE_CHECKING:
    from fovea_server.fetch import Fetcher

T = TypeVar("T")

router = APIRouter(tags=["predict"])

ModelName = Annotated[str, Path(description="a model of the repository")]
Version = Annotated[int, Path(ge=1, description="a version of it")]

Picture = Literal["image/jpeg", "image/png"]
_PICTURES: tuple[Picture, ...] = ("image/jpeg", "image/png")


@router.post("/v1/models/{name}/predict", **PREDICT)
async def predict(request: Request, name: ModelName) -> Response:
    """Find things in pictures with the newest version of a model."""
    return await _answer(request, name, None)


@router.post("/v1/models/{name}/versions/{version}/predict", **PREDICT)
async def predict_version(request: Request, name: ModelName, version: Version) -> Response:
    """Find things in pictures with one version of a model."""
    return await _answer(request, name, version)


async def _answer(request: Request, name: str, version: int | None) -> Response:
    state = request.app.state
    settings: Settings = state.settings
    plane: DataPlane = state.plane
    # An unknown model is told before a large body is taken in.
    plane.registry.get(name, version)
    timeout_s = _timeout_s(request)
    picture = _picture_asked(request)
    body = await read_body(
        request,
        max_bytes=int(settings.max_body_mb * 1e6),
        timeout_s=settings.body_timeout_s,
    )
    sources, options = await _parsed(request, body, settings)
    images = [
        await _fetched(source.address, state.fetcher) if isinstance(source, Url) else source
        for source in sources
    ]
    if picture and len(images) != 1:
        raise InvalidRequest(f"Accept: {picture} answers one picture; send one, or accept JSON")
    prediction = await _unless_gone(
        request,
        plane.predict(
            name, version, images, options, timeout_s=timeout_s, keep_pixels=picture is not None
        ),
    )
    if len(prediction.images) == 1 and isinstance(prediction.images[0], FoveaError):
        raise prediction.images[0]
    if picture:
        content = await run_in_threadpool(_annotated, prediction, picture)
        return Response(content, media_type=picture)
    return Response(orjson.dumps(prediction_json(prediction)), media_type="application/json")


async def _parsed(
    request: Request, body: bytes, settings: Settings
) -> tuple[list[Source], PredictOptions]:
    params = request.query_params
    query = {key: ",".join(params.getlist(key)) for key in params}
    kind = request.headers.get("content-type", "")
    if kind.startswith(("application/json", "multipart/")):
        # Taking a large body apart takes milliseconds that the event loop does not have.
        return await run_in_threadpool(parse_body, body, kind, query, settings.max_images)
    return parse_body(body, kind, query, settings.max_images)


async def _fetched(address: str, fetcher: Fetcher | None) -> bytes | FoveaError:
    if fetcher is None:
        return FetchRefused("this server does not fetch urls; start it with --allow-url")
    try:
        return await fetcher.fetch(address)
    except FetchRefused as error:
        return error


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await the work; if the client goes away first, cancel it, so that it frees its place."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def _timeout_s(request: Request) -> float | None:
    text = request.headers.get("x-request-timeout-ms")
    if text is None:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= 3_600_000:
        raise InvalidOption(
            f"X-Request-Timeout-Ms is '{text}'; it must be milliseconds, from 1 to 3600000"
        )
    return milliseconds / 1e3


def _picture_asked(request: Request) -> Picture | None:
    accepted = request.headers.get("accept", "")
    return next((kind for kind in _PICTURES if kind in accepted), None)


def _annotated(prediction: Prediction, kind: Picture) -> bytes:
    result = prediction.images[0]
    assert isinstance(result, ImageResult)
    assert result.pixels is not None, "asked for with keep_pixels"
    if result.detections is None:
        raise InvalidRequest("this model's head is not recognised: there are no boxes to draw")
    return encode(draw(result.pixels, result.detections, prediction.labels), kind)
