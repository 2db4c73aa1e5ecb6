"""The endpoints for trace and log settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fovea_server.dataplane.service import Service
from fovea_server.http.v2.endpoints.names import name_of
from fovea_server.http.v2.json_reader import parse_json
from fovea_server.http.v2.messages import Answer, Request, json_answer


async def trace(service: Service, request: Request) -> Answer:
    """Read or change the trace settings of a model or of all."""
    model = name_of(request, "model") or None
    if request.method == "POST":
        return json_answer(service.trace.update(model, _given(request)))
    return json_answer(service.trace.get(model))


async def log(service: Service, request: Request) -> Answer:
    """Read or change the log settings."""
    if request.method == "POST":
        return json_answer(service.log_settings.update(_given(request)))
    return json_answer(service.log_settings.get())


def _given(request: Request) -> Mapping[str, Any]:
    given = parse_json(request.body)
    # Triton changes no setting if the body is not an object.
    return given if type(given) is dict else {}
