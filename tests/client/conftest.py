"""A server of a script, and both clients to ask it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.scripted_server import ScriptedServer

from fovea_client import AsyncClient, Client

Ask = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield scripted
        scripted.shutdown()
        thread.join()


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Calls a method of a new client, of either kind."""

    def call(url: str, method: str, *arguments: Any, options: Any = None, **settings: Any) -> Any:
        if request.param is Client:
            with Client(url, **settings) as client:
                return getattr(client, method)(*arguments, **options or {})

        async def wait() -> Any:
            async with AsyncClient(url, **settings) as client:
                return await getattr(client, method)(*arguments, **options or {})

        return asyncio.run(wait())

    return call
