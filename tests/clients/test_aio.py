"""tritonclient's asyncio clients."""

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from tests.clients.conftest import address, make_pair
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.real

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)


@pytest.fixture(params=["http", "grpc"])
def protocol(request) -> ModuleType:
    """The asyncio sibling of the module that the other tests use."""
    return {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}[request.param]


def test_many_requests_at_once(server, protocol):
    async def ask() -> None:
        async with protocol.InferenceServerClient(address(server, protocol)) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("simple")) is not None
            results = await asyncio.gather(
                *(client.infer("simple", make_pair(protocol, FIRST, ONES * n)) for n in range(64))
            )
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + n)
            with pytest.raises(InferenceServerException, match="'nobody' is not found"):
                await client.infer("nobody", make_pair(protocol, FIRST, ONES))

    asyncio.run(ask())


def test_a_stream(server):
    grpc = tritonclient.grpc.aio

    async def requests() -> AsyncIterator[dict]:
        for n in range(10):
            yield {
                "model_name": "simple" if n != 4 else "nobody",
                "inputs": make_pair(grpc, FIRST, ONES * n),
                "request_id": str(n),
            }

    async def ask() -> None:
        async with grpc.InferenceServerClient(address(server, grpc)) as client:
            n = 0
            async for result, error in client.stream_infer(requests()):
                assert (error is not None) == (n == 4)
                if error is None:
                    assert result.get_response().id == str(n)
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - n)
                n += 1
            assert n == 10

    asyncio.run(ask())


def test_a_caller_who_leaves_takes_the_request_along(server):
    grpc = tritonclient.grpc.aio

    async def ask() -> None:
        async with grpc.InferenceServerClient(address(server, grpc)) as client:
            # It waits 100 ms for a batch; the caller does not.
            call = client.infer(
                "simple_dynbatch", make_pair(grpc, FIRST, ONES), client_timeout=0.02
            )
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                await call
            result = await client.infer("simple", make_pair(grpc, FIRST, ONES))
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + ONES)

    asyncio.run(ask())
