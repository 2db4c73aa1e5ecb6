"""Image in, boxes out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from fovea_engines.detect.draw.draw import annotated
from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.images import Prediction
from fovea_server.http.v1.answered import answered
from fovea_server.http.v1.answers import boxes_json, raise_if_alone
from fovea_server.http.v1.body import Source, parse_body
from fovea_server.http.v1.head import Image, accepted_image, query_values, timeout_of, wraps_images
from fovea_server.http.v1.models import ModelName, Version, restricted
from fovea_server.http.v1.openapi import described_prediction
from fovea_server.http.v1.sources import fetched
from fovea_server.models.model import ServedModel
from fovea_server.settings import Settings
from fovea_server.tensors.image_messages import ImageResult

router = APIRouter(tags=["predict"], dependencies=[restricted("inference")])


@router.post("/v1/models/{name}/predict", **described_prediction("predict"))
async def predict(request: Request, name: ModelName) -> Response:
    """Find what is on one or more images, with the newest version of a model."""
    return await _answer(request, name, None)


@router.post(
    "/v1/models/{name}/versions/{version}/predict", **described_prediction("predict_version")
)
async def predict_version(request: Request, name: ModelName, version: Version) -> Response:
    """Find what is on one or more images, with one version of a model."""
    return await _answer(request, name, version)


async def _answer(request: Request, name: str, version: int | None) -> Response:
    settings: Settings = request.app.state.service.settings
    plane: DataPlane = request.app.state.service.plane
    # An unknown model is reported before a large body is read.
    model = plane.get(name, version)
    timeout_s = timeout_of(request.headers.get("x-request-timeout-ms"))
    image = accepted_image(request.headers.get("accept", ""))

    async def answer(body: bytes) -> Response:
        sources, options = await _parsed(request, body, settings)
        return await _predicted(request, model, version, sources, options, timeout_s, image)

    return await answered(request, answer, timeout_s)


async def _predicted(
    request: Request,
    model: ServedModel,
    version: int | None,
    sources: list[Source],
    options: PredictOptions,
    timeout_s: float | None,
    image: Image | None,
) -> Response:
    plane: DataPlane = request.app.state.service.plane
    images = await fetched(request, sources)
    content_type = request.headers.get("content-type", "")
    if image is None:
        asked = (model, version, images, options, timeout_s, content_type)
        return Response(await boxes_json(plane, *asked), media_type="application/json")
    if len(images) != 1:
        raise InvalidRequest(f"Accept: {image} answers one image; send one, or accept JSON")
    # Pixels that wait to be drawn on are large: few at a time.
    async with request.app.state.drawing:
        prediction = await plane.predict(
            model, version, images, options, timeout_s=timeout_s, keep_pixels=True
        )
        raise_if_alone(prediction, images, content_type)
        content = await drawn(plane, prediction, image)
    return Response(content, media_type=image)


async def _parsed(
    request: Request, body: bytes, settings: Settings
) -> tuple[list[Source], PredictOptions]:
    query = query_values(request.scope["query_string"].decode("latin-1"))
    kind = request.headers.get("content-type", "")
    if wraps_images(kind):
        # Parsing a large body would block the event loop.
        return await run_in_threadpool(parse_body, body, kind, query, settings.max_images)
    return parse_body(body, kind, query, settings.max_images)


async def drawn(plane: DataPlane, prediction: Prediction, kind: Image) -> bytes:
    """Draw what was found on the single image of a prediction, which has kept its pixels."""
    result = prediction.images[0]
    assert isinstance(result, ImageResult)
    assert result.pixels is not None, "asked for with keep_pixels"
    if result.found is None:
        raise InvalidRequest("this model's head is not recognised: there is nothing to draw")
    words = prediction.words
    seen = result.found, result.pixels, words.labels, words.skeleton
    async with plane.drawing(result.pixels):
        return await run_in_threadpool(annotated, *seen, kind)
