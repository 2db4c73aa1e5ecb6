"""The endpoints of the model repository: index, load and unload."""

from __future__ import annotations

import asyncio
from typing import Any

from fovea_preprocess.errors import InvalidRequest, LoadFailed, MalformedJson
from fovea_server.dataplane.refusals import refuse_repository
from fovea_server.dataplane.service import Service
from fovea_server.extensions.json_values import as_bool, as_string
from fovea_server.http.v2.base64_text import decoded
from fovea_server.http.v2.endpoints.names import name_of
from fovea_server.http.v2.json_reader import find, parse_json, read
from fovea_server.http.v2.messages import Answer, Request, json_answer


async def index(service: Service, request: Request) -> Answer:
    """List every model of the repository, or those that are ready."""
    ready = as_bool(find(_body(request), "ready", False))
    entries = service.plane.index(ready)
    return json_answer(
        [
            {
                key: value
                for key in ("name", "version", "state", "reason")
                if (value := getattr(entry, key))
            }
            for entry in entries
        ]
    )


async def load(service: Service, request: Request) -> Answer:
    """Load or reload a model."""
    refuse_repository(request.names["repository"])
    # In a thread: the request may hold a model's files.
    config, files = await asyncio.to_thread(_sent, request)
    await service.plane.load(name_of(request, "model"), config=config, files=files)
    return Answer()


def _sent(request: Request) -> tuple[str | None, dict[str, bytes]]:
    """Read the configuration and the files in a request."""
    given = _parameters(request)
    config, files = None, {}
    for name, value in given.items():
        text = as_string(value)
        if name == "config":
            config = text
        elif name.startswith("file:"):
            files[name.removeprefix("file:")] = _file(name, text)
        else:
            raise LoadFailed("unexpected error on creating Triton parameter")
    return config, files


async def unload(service: Service, request: Request) -> Answer:
    """Unload a model, and on request the models that it depends on."""
    refuse_repository(request.names["repository"])
    dependents = find(_parameters(request), "unload_dependents", False)
    await service.plane.unload(
        name_of(request, "model"), dependents=read("unload_dependents", as_bool, dependents)
    )
    return Answer()


def _body(request: Request) -> Any:
    return parse_json(request.body) if request.body else {}


def _parameters(request: Request) -> dict[str, Any]:
    given = find(_body(request), "parameters", {})
    if type(given) is not dict:
        raise MalformedJson("attempt to get members of a non-object")
    return given


def _file(name: str, text: str) -> bytes:
    try:
        return decoded(text)
    except ValueError:
        raise InvalidRequest(f"'{name}' is not base64") from None
