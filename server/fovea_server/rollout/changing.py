"""Answers requests that change how a model lives: for those who may load models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.route import answered, call_of, check_control, parsed
from fovea_server.models.config.config_check import Document, checked


def admit(request: Request) -> None:
    """Refuse who may not load models; the log says who did."""
    call_of(request).model = request.path_params["name"]
    check_control(request, "model-repository")


async def changing(
    request: Request, kind: type[Document], work: Callable[[Document], Awaitable[str]]
) -> Response:
    """Answer with the JSON that `work` makes of the document in the body."""
    admit(request)

    def read(body: bytes, most: int) -> Document:
        return checked(kind, json_object(body, most))

    async def answer(body: bytes) -> Response:
        made = await work(await parsed(request, body, read))
        return Response(made, media_type="application/json")

    return await answered(request, answer, None)
