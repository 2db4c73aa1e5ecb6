"""Every route says by which part of the protocol it is restricted: a new one is not open to all."""

import asyncio
import re

import httpx
import pytest

from fovea_server.app import build_app
from fovea_server.auth.restrictions import APIS
from fovea_server.http.application import create_application
from fovea_server.settings import Settings


def test_no_operation_is_answered_without_its_secret(tmp_path):
    settings = Settings(
        model_repository=[tmp_path],
        api=["deepstack", "label-studio", "roboflow"],
        http_restricted_api=[f"{','.join(APIS)}:key=secret"],
    )
    application = create_application(build_app(settings))

    async def ask() -> dict[tuple[str, str], int]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
            asked = [(method, path) for path, methods in paths.items() for method in methods]
            return {
                (method, path): (
                    await client.request(method, re.sub(r"\{\w+\}", "1", path))
                ).status_code
                for method, path in asked
            }

    found = asyncio.run(ask())
    assert len(found) > 30
    assert {one: status for one, status in found.items() if status != 403} == {}


# The OpenAPI document has no WebSockets.
SOCKETS = ["/v1/models/1/stream", "/v1/models/1/versions/1/stream", "/v1/streams/1/events"]


@pytest.mark.parametrize("path", SOCKETS)
def test_no_websocket_is_opened_without_its_secret(tmp_path, path):
    restricted = [f"{','.join(APIS)}:key=secret"]
    settings = Settings(model_repository=[tmp_path], http_restricted_api=restricted)
    application = create_application(build_app(settings))
    wish = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "1"}

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=wish)

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "restricted")
