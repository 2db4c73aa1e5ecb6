"""Helpers of the routes under /v1: access checks, body limits, timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Request, Response

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.service import Service
from fovea_server.http.receive import Watch, cancelled_error
from fovea_server.http.v1.body import Source, json_object, read_body
from fovea_server.http.v1.openapi import MODEL_EXAMPLE
from fovea_server.http.v1.sources import ImageSources
from fovea_server.json_text import MAX_WEIGHT
from fovea_server.models.config.config_check import Document, validate
from fovea_server.traffic.call import Call

T = TypeVar("T")

ModelName = Annotated[str, Path(description="name of the model", examples=[MODEL_EXAMPLE])]
Version = Annotated[int, Path(ge=1, description="version of the model", examples=[1])]
VERSION_PATTERN = "0*[1-9][0-9]{0,99}"
"""Pattern of a version in a path: a positive integer. FastAPI rejects other texts."""


def admit(request: Request) -> None:
    """Raise an error if the client may not load models; otherwise log the change."""
    call_of(request).model = request.path_params["name"]
    check_control(request, "model-repository")


async def answer_change(
    request: Request, kind: type[Document], work: Callable[[Document], Awaitable[str]]
) -> Response:
    """Parse the body as a JSON document, and return the JSON text from `work(document)`.

    An empty body counts as an empty JSON object.

    Raises:
        Restricted, Unauthenticated, Forbidden: the client may not change the server.
    """
    admit(request)

    def read(body: bytes, most: int) -> Document:
        return validate(kind, json_object(body or b"{}", most))

    async def answer(body: bytes) -> Response:
        made = await work(await parse_json_body(request, body, read))
        return Response(made, media_type="application/json")

    return await answer_body(request, answer, None)


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


def call_of(request: Request) -> Call:
    """Return the `Call` of a request, which the log and the metrics use."""
    call: Call = request.state.call
    return call


def require_access(api: str) -> Any:
    """Return a dependency that checks the client's access to an API; see `Authenticator.admit`."""

    async def check(request: Request) -> None:
        call = call_of(request)
        call.model = request.path_params.get("name", "")
        service_of(request).authenticator.admit(call, api)

    return Depends(check)


async def _admit_inference(request: Request) -> None:
    call, route = call_of(request), request.scope["route"].path.replace("{name}", "{model}")
    call.model = request.path_params.get("name", "")
    service_of(request).authenticator.admit(
        call, "inference", operation=f"{request.method} {route}"
    )


INDEX = [require_access("metadata"), require_access("model-repository")]
"""Dependencies of routes that show the state of every model and the reason if a model is not ready.
"""

inferring = Depends(_admit_inference)
"""Dependency of routes that run a model. The metrics count all requests to these routes, including
rejected ones.
"""


def check_control(request: Request, api: str) -> None:
    """Check that a client may change the server with an API, and log the change.

    Raises:
        Restricted, Unauthenticated, Forbidden: the client may not change the server.
    """
    call = call_of(request)
    service_of(request).authenticator.admit(call, api, control=f"{call.method} {call.shown!r}")


Work = Callable[[bytes], Coroutine[Any, Any, Response]]


async def answer_body(request: Request, work: Work, timeout_s: float | None) -> Response:
    """Receive the body of a request, and return the response from `work`.

    The bytes that were counted with `request.state.hold` are released after `work` returns. If the
    client disconnects, or `timeout_s` seconds after the head of the request arrived, `work` is
    cancelled.

    Raises:
        FoveaError: an error of `read_body`, of `Watch` or of `work`.
    """
    service = service_of(request)
    watch = Watch(request.receive, timeout_s, call_of(request).began)
    try:
        with service.budget.body() as hold, watch:
            request.state.hold = hold
            return await work(await read_body(request, watch, hold, service.settings))
    except asyncio.CancelledError:
        raise cancelled_error() from None


async def parse_json_body(
    request: Request, body: bytes, work: Callable[[bytes, int], T], most: int = MAX_WEIGHT
) -> T:
    """Run `work`, which parses the JSON in a body, and return its result.

    A large body is parsed in a thread, so that it does not block other requests.
    """
    return await service_of(request).json.run(body, partial(work, body, most), most)


async def fetch_images(
    request: Request, sources: Sequence[Source]
) -> list[bytes | bytearray | FoveaError]:
    """Replace each URL among the sources of a request by its image or an error."""
    fetching: ImageSources = request.app.state.sources
    return await fetching.fetch_all(sources, request.state.hold)
