"""Requests of the asyncio client that are cancelled, or under way when it is closed."""

import asyncio
import random

import pytest
from tests.client.scripted_server import ScriptedServer

from fovea_client import AsyncClient


def test_cancelled_requests_leave_the_client_in_order(server: ScriptedServer) -> None:
    moments = random.Random(0)

    async def run() -> None:
        async with AsyncClient(server.url, timeout=60) as client:
            for _ in range(300):
                task = asyncio.create_task(client.ready())
                await asyncio.sleep(moments.random() * 0.004)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert all(await asyncio.gather(*(client.ready() for _ in range(20))))

    asyncio.run(run())


def test_a_closed_client_sends_nothing_and_keeps_no_connection(server: ScriptedServer) -> None:
    server.delay_s = 0.1

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            asked = asyncio.create_task(client.ready())
            while not server.requests:
                await asyncio.sleep(0.01)
        assert await asked
        with pytest.raises(RuntimeError, match="is closed"):
            await client.ready()
        del asked, client

    asyncio.run(run())  # a socket that is left over is a ResourceWarning, which is an error
    assert len(server.requests) == 1
