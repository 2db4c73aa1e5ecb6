"""Predict requests whose body is one image: a short path to the same answers as FastAPI's."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from urllib.parse import unquote

from fovea_preprocess.errors import BodyTooLarge, FoveaError
from fovea_server.dataplane.service import Service
from fovea_server.http.front import Front
from fovea_server.http.messages import Request, Response
from fovea_server.http.receive import in_time
from fovea_server.http.v1.answers import boxes_json, error_answer
from fovea_server.http.v1.body import empty, too_large
from fovea_server.http.v1.head import accepted_image, query_options, timeout_of, wraps_images
from fovea_server.models.model import ServedModel

# What does not match, for example a version that is none, is left to FastAPI to refuse.
_TARGET = re.compile(
    r"/v1/models/(?P<model>[^/?#]+)(?:/versions/(?P<version>[1-9][0-9]{0,17}))?/predict"
    r"(?:\?[^#]+)?"
)


@lru_cache(maxsize=256)
def _resolve(target: str) -> dict[str, str | None] | None:
    """Find the unquoted names in the path of a target; None if it is no predict's."""
    found = _TARGET.fullmatch(target)
    if not target.isascii() or found is None or "/" in (name := unquote(found["model"])):
        return None
    return {"model": name, "version": found["version"]}


class ImageFront(Front):
    """Answers predict requests whose body is one image, and that accept JSON."""

    keeps_refused = False

    def takes(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return True for an image that is sent as it is, neither compressed nor in a form."""
        if method != "POST" or _resolve(target.decode("latin-1")) is None:
            return False
        fields = dict(headers)
        return (
            # FastAPI decides which of several headers with one name counts.
            len(fields) == len(headers)
            and b"content-encoding" not in fields
            and not wraps_images(fields.get(b"content-type", b"").decode("latin-1"))
            and accepted_image(fields.get(b"accept", b"").decode("latin-1")) is None
        )

    def route(self, request: Request) -> None:
        """Find the model of a request, or refuse it."""
        request.api, request.names = "inference", _resolve(request.target) or {}
        self.service.http_restrictions.check(request.api, request.header)
        # An unknown model is reported before a large body is read.
        model = self.service.plane.get(request.name("model"), request.version)
        request.timeout_s = timeout_of(request.header("x-request-timeout-ms"))
        request.endpoint = partial(_predict, model)

    def error_answer(self, error: FoveaError) -> Response:
        """Make an answer in the form of /v1."""
        return error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Make the error for a body over the limit."""
        return too_large(self.service.settings.http_max_input_size)


async def _predict(model: ServedModel, service: Service, request: Request) -> Response:
    if not request.body:
        raise empty()
    options = query_options(request.target.partition("?")[2])
    work = boxes_json(
        service.plane,
        model,
        request.version,
        [request.body],
        options,
        request.timeout_s,
        request.header("content-type") or "",
    )
    return Response(body=[await in_time(work, request.timeout_s, request.began)])
