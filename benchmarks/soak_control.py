"""Models and memory that come and go while others ask."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
from collections.abc import Awaitable, Callable
from multiprocessing.shared_memory import SharedMemory

import orjson
from soak_requests import (
    NOTHING,
    OVERRIDDEN,
    PART,
    RELOADED,
    UNLOADED,
    Request,
    binary_of_ones,
    from_region,
    message,
)
from soak_tally import Tally

from fovea_server.bench.sender import Connection

PAUSE_S = 0.4
"""Between one and the next, so that there is time to ask too."""


class Churn:
    """Loads and unloads, registers and unregisters, until the run is over.

    Args:
        tally: of the run.
        port: of HTTP.
        model: an ONNX file that adds and subtracts, for models that come with their request.
    """

    def __init__(self, tally: Tally, port: int, model: bytes) -> None:
        self._tally, self._port = tally, port
        self._file = base64.b64encode(model).decode()

    @property
    def deeds(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Each goes on until the run is over."""
        return (
            lambda: self._reload("loads", RELOADED),
            lambda: self._reload("loads of an ensemble's part", PART, max_batch_size=8),
            self._unload,
            self._ask_what_goes,
            self._override,
            self._fail,
            self._regions,
        )

    async def _reload(self, kind: str, model: str, **config: object) -> None:
        """A model that others ask for, anew, with another configuration each time."""
        for turn in itertools.count():
            if not self._tally.more(kind):
                return
            turned = {"parameters": {"turn": {"string_value": str(turn)}}}
            await self._load(model, {"backend": "onnxruntime", **config, **turned})

    async def _unload(self) -> None:
        while self._tally.more("unloads"):
            await self._ask(_control(UNLOADED, "unload", {}))
            await self._load(UNLOADED, {})

    async def _ask_what_goes(self) -> None:
        """Whoever asks for the model of `_unload` is answered rightly, or told why not."""
        request = binary_of_ones(UNLOADED)
        connection = await Connection.connect("127.0.0.1", self._port)
        while self._tally.more("of a model that goes"):
            status, answer, *_ = await connection.ask(request.sent)
            if status not in (404, 503):
                self._tally.expect(request, status, answer)
            await asyncio.sleep(0.005)
        connection.close()

    async def _override(self) -> None:
        """A model that comes with its request, is asked, and goes."""
        config = {"backend": "onnxruntime", "max_batch_size": 8}
        while self._tally.more("file overrides"):
            await self._load(OVERRIDDEN, config, file=self._file)
            await self._ask(binary_of_ones(OVERRIDDEN, rows=1))
            await self._ask(_control(OVERRIDDEN, "unload", {}))

    async def _fail(self) -> None:
        """Loads that fail; what was served is served still."""
        broken = base64.b64encode(b"this is no model").decode()
        while self._tally.more("failing loads"):
            await self._load(RELOADED, {"backend": "onnxruntime"}, file=broken, status=400)
            # Each leaves a line in the log.
            await asyncio.sleep(PAUSE_S)

    async def _regions(self) -> None:
        name = f"fovea_soak_churn_{os.getpid()}"
        path = f"/v2/systemsharedmemory/region/{name}"
        described = orjson.dumps({"key": f"/{name}", "offset": 0, "byte_size": 4096})
        while self._tally.more("regions"):
            region = SharedMemory(name, create=True, size=4096)
            await self._ask(Request(message(f"POST {path}/register", described), 200, NOTHING))
            await self._ask(from_region(name))
            await self._ask(Request(message(f"POST {path}/unregister"), 200, NOTHING))
            region.close()
            region.unlink()
            await asyncio.sleep(PAUSE_S)

    async def _load(
        self, model: str, config: object, *, file: str | None = None, status: int = 200
    ) -> None:
        given = {"config": orjson.dumps(config).decode()}
        if file is not None:
            given["file:1/model.onnx"] = file
        await self._ask(_control(model, "load", given, status))
        await asyncio.sleep(PAUSE_S)

    async def _ask(self, request: Request) -> None:
        connection = await Connection.connect("127.0.0.1", self._port)
        self._tally.expect(request, *(await connection.ask(request.sent))[:2])
        connection.close()


def _control(model: str, verb: str, given: dict[str, str], status: int = 200) -> Request:
    line = f"POST /v2/repository/models/{model}/{verb}"
    return Request(message(line, orjson.dumps({"parameters": given})), status, NOTHING)
