"""The limits of messages that arrive: two of them may end a call at once."""

import asyncio

from fovea_preprocess.errors import BodyTimeout
from fovea_server.grpc.arrivals import Reader, _stop


def test_a_call_whose_own_limit_has_just_ended_it_is_stopped_only_once():
    async def run() -> Reader:
        reader, loop = Reader(), asyncio.get_running_loop()
        now = loop.time()
        try:
            async with asyncio.timeout_at(now) as reader.timeout:
                # Both are due in the same turn of the loop, before this task runs again.
                loop.call_at(now + 1e-6, _stop, [reader], BodyTimeout("too slow"))
                await asyncio.sleep(60)
        except TimeoutError:
            return reader
        raise AssertionError("it has a limit")

    failed: list[object] = []

    async def watched() -> Reader:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
        return await run()

    assert asyncio.run(watched()).error is None
    assert not failed
