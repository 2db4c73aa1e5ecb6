"""Bodies over their limits: what they took is free at once."""

import asyncio
import gc
import time
import tracemalloc
import zlib
from functools import partial

import pytest

from fovea_preprocess.errors import BodyTooLarge
from fovea_server.http.receive import Watch, unpack

LIMIT = 1 << 20


async def unpacked() -> None:
    packed = zlib.compress(bytes(4 * LIMIT))
    await unpack(packed, lambda size: None, LIMIT, partial(BodyTooLarge, "too large"))


async def received() -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": bytes(LIMIT - 1), "more_body": True}

    with Watch(receive, None, time.monotonic()) as watch:
        await watch.body(LIMIT, partial(BodyTooLarge, "too large"))


@pytest.mark.parametrize("over", [unpacked, received])
def test_what_a_body_over_its_limit_took_waits_for_no_collection(over):
    async def ten() -> None:
        for _ in range(10):
            try:
                await over()
            except BodyTooLarge:
                continue
            raise AssertionError("it was taken")

    gc.disable()
    tracemalloc.start()
    try:
        asyncio.run(ten())
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < 3 * LIMIT
