"""The predict and annotate routes of /v1."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import BodyTooLarge, FoveaError, InvalidRequest, NotFound
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.dataplane.service import Service
from fovea_server.http.fast_routes import FastRoute
from fovea_server.http.messages import Request, Response
from fovea_server.http.receive import unpack
from fovea_server.http.v1.answers import boxes_json, draw_image, error_answer, raise_if_alone
from fovea_server.http.v1.body import Source, check_encoding, empty, parsed_body, too_large
from fovea_server.http.v1.dependencies import VERSION_PATTERN, ModelName, Version, inferring
from fovea_server.http.v1.openapi import describe_drawing, describe_prediction
from fovea_server.http.v1.request_head import (
    accepted_image,
    body_kind,
    query_options,
    query_values,
    timeout_of,
    wraps_images,
)
from fovea_server.http.v1.sources import ImageSources
from fovea_server.models.model import ServedModel

router = APIRouter(tags=["predict"], dependencies=[inferring])
"""Router that documents the requests in OpenAPI and rejects invalid versions. `PredictRoute`
answers the requests.
"""

# FastAPI rejects requests that do not match this pattern, for example if the version is not a
# number.
_PATH = re.compile(
    rf"/v1/models/(?P<model>[^/]+)(?:/versions/(?P<version>{VERSION_PATTERN}))?"
    r"/(?P<operation>predict(?:/form|/json)?|annotate)",
    re.DOTALL,
)


def _add(path: str, operation: str, describe: Callable[[str], dict[str, Any]], does: str) -> None:
    """Add two routes for an operation: one for the current version and one for a given version."""

    @router.post(
        f"/v1/models/{{name}}/{path}", **describe(operation), summary=does, description=does
    )
    async def current(name: ModelName) -> None:
        raise NotFound(f"there is no model '{name[:60]}'")

    @router.post(
        f"/v1/models/{{name}}/versions/{{version}}/{path}",
        **describe(f"{operation}_version"),
        summary=f"{does} With one version of the model.",
        description=f"{does} With one version of the model.",
    )
    async def one(name: ModelName, version: Version) -> None:
        raise NotFound(f"model '{name[:60]}' has no such version")


_image = partial(describe_prediction, kind="application/octet-stream")
_form = partial(describe_prediction, kind="multipart/form-data")
_json = partial(describe_prediction, kind="application/json")
_add("predict", "predict", _image, "Run a model on an image.")
_add("predict/form", "predict_form", _form, "Run a model on the images of a form.")
_add("predict/json", "predict_json", _json, "Run a model on images in JSON.")
_add("annotate", "annotate", describe_drawing, "Draw a model's results on an image.")


@lru_cache(maxsize=256)
def _resolve(path: str) -> dict[str, str | None] | None:
    """Return the model, version and operation in a percent-encoded path.

    Return None if it is not the path of a predict request.
    """
    found = _PATH.fullmatch(unquote(path)) if path.isascii() else None
    return None if found is None else found.groupdict()


def _split(target: str) -> tuple[str, str]:
    """Return the path (quoted) and the query of a target.

    A fragment belongs to the client and is dropped.
    """
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


class PredictRoute(FastRoute):
    """Answers predict requests with an encoded image, a form or JSON.

    `/predict` chooses by the headers Content-Type and Accept. `/predict/form`, `/predict/json` and
    `/annotate` have a fixed type of body or response, which generated clients need.
    """

    keeps_refused = False

    def __init__(self, service: Service, sources: ImageSources) -> None:
        super().__init__(service)
        self._sources = sources

    def takes(self, method: str, target: str) -> bool:
        """Return whether a request is a predict or annotate request."""
        return method == "POST" and _resolve(_split(target)[0]) is not None

    def route(self, request: Request) -> None:
        """Check access, model and headers of a request, and set the request's endpoint."""
        call = request.call
        names = _resolve(_split(call.path)[0])
        assert names is not None, "it was taken"
        request.names, call.model = names, names["model"] or ""
        operation = f"POST /v1/models/{{model}}/{names['operation']}"
        self.service.authenticator.admit(call, "inference", operation=operation)
        # Look up the model first, so that a request for an unknown model is rejected before its
        # body arrives.
        version = None if names["version"] is None else int(names["version"])
        model = self.service.models.get(call.model, version)
        request.timeout_s = timeout_of(call.header("x-request-timeout-ms"))
        check_encoding(call.header("content-encoding"))
        request.endpoint = partial(self._predict, model, version, names["operation"] or "")

    def error_answer(self, error: FoveaError) -> Response:
        """Return the response for an error, in the form of /v1."""
        return error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Return the error for a body that exceeds the limit."""
        return too_large(self.service.settings.http_max_input_size)

    async def _predict(
        self,
        model: ServedModel,
        version: int | None,
        operation: str,
        service: Service,
        request: Request,
    ) -> Response:
        if not request.body:
            raise empty()
        kind = body_kind(operation, request.header("content-type") or "")
        sources, options = await self._parse(request, kind)
        images = await self._sources.fetch_all(sources, request.hold)
        image = accepted_image(request.header("accept") or "")
        if operation == "annotate" and image is None:
            image = "image/jpeg"
        arguments = model, version, images, options
        if image is None:
            return Response(
                body=[await boxes_json(service.plane, *arguments, request.timeout_s, kind)]
            )
        if len(images) != 1:
            raise InvalidRequest(
                f"the request accepts {image}, but has {len(images)} images: send one image, or "
                "accept application/json"
            )
        # Limit the number of images that wait to be drawn, because each holds its decoded pixels in
        # memory.
        async with service.drawing:
            prediction = await service.plane.predict(
                PredictRequest(*arguments, timeout_s=request.timeout_s, keep_pixels=True)
            )
            raise_if_alone(prediction, images, kind)
            content = await draw_image(service, prediction, image)
        return Response(body=[content], media_type=image.encode())

    async def _parse(self, request: Request, kind: str) -> tuple[list[Source], PredictOptions]:
        settings = self.service.settings
        # Release the body early. Otherwise the memory would hold a form or JSON text in addition to
        # its images.
        body, request.body = request.body, b""
        encoding = request.header("content-encoding")
        if encoding not in (None, "identity"):
            limit = settings.http_max_input_size
            try:
                body = await unpack(body, request.hold, limit, partial(too_large, limit))
            except zlib.error:
                raise InvalidRequest(
                    f"the Content-Encoding is {encoding}, but the body is not valid {encoding}"
                ) from None
        query = _split(request.call.path)[1]
        if not wraps_images(kind):
            return [body], query_options(query)
        values, json = query_values(query), self.service.json
        return await parsed_body(body, kind, values, settings.max_images, json)
