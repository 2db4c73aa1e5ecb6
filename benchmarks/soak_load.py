"""Mixed load on a server, every answer looked at, while its models are loaded and unloaded."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import orjson
from http_load import Connection
from soak_requests import RELOADED, Request, grpc_requests
from tritonclient.grpc import service_pb2

CALL = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
UNLOADED = "onnx_nobatch_int32_int8_int8"
"""A model that nobody asks for, loaded and unloaded all the while."""
Channel = Any  # grpc.aio has no types


class MixedLoad:
    """Clients of every kind, until so many requests have been answered.

    Attributes:
        counts: requests and other deeds, by kind.
        errors: what was not as it should be, in words.
    """

    def __init__(self, http_port: int, grpc_port: int, requests: Sequence[Request]) -> None:
        self._http_port, self._grpc_port = http_port, grpc_port
        self._requests, self._messages = list(requests), grpc_requests()
        self._left = 0
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    async def run(self, requests: int) -> None:
        """Send so many requests, and hang up."""
        self._left = requests
        target = f"127.0.0.1:{self._grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel:
            others = (self._reload, self._unload, self._hang_up)
            async with asyncio.TaskGroup() as group:
                for seed in range(6):
                    group.create_task(self._http(seed))
                for seed in range(5):
                    group.create_task(self._grpc(channel, seed))
                group.create_task(self._stream(channel))
                group.create_task(self._cancel(channel))
                for other in others:
                    group.create_task(other())

    def _more(self, kind: str, number: int = 1) -> bool:
        """Whether to go on; counts what is sent next."""
        if self._left <= 0:
            return False
        self._left -= number
        self.counts[kind] += number
        return True

    def _expect(self, request: Request, status: int, answer: bytes) -> None:
        if status != request.status or request.holds not in answer:
            self.errors.append(f"{request.sent[:200]!r} was answered {status} {answer[:200]!r}")

    async def _http(self, seed: int) -> None:
        connection = await Connection.open(self._http_port)
        chosen = random.Random(seed)
        while self._more("http"):
            request = chosen.choice(self._requests)
            self._expect(request, *await connection.ask(request.sent))
        connection.close()

    async def _grpc(self, channel: Channel, seed: int) -> None:
        call, chosen = channel.unary_unary(CALL), random.Random(seed)
        while self._more("grpc"):
            request = chosen.choice(self._messages)
            try:
                self._expect(request, 0, await call(request.sent))
            except grpc.aio.AioRpcError as error:
                self._expect(request, error.code().value[0], (error.details() or "").encode())

    async def _stream(self, channel: Channel, length: int = 20) -> None:
        """Streams in which every message is answered, a wrong one too."""
        while self._more("in a stream", length):
            sent = list(itertools.islice(itertools.cycle(self._messages), length))
            stream = channel.stream_stream(STREAM)(iter([request.sent for request in sent]))
            answers = [service_pb2.ModelStreamInferResponse.FromString(a) async for a in stream]
            for request, answer in zip(sent, answers, strict=True):
                text = answer.SerializeToString()
                self._expect(request, request.status if answer.error_message else 0, text)

    async def _cancel(self, channel: Channel) -> None:
        """Callers who leave while their request waits for others to batch it with."""
        message = service_pb2.ModelInferRequest.FromString(self._messages[0].sent)
        message.model_name = "simple_dynbatch"
        call = channel.unary_unary(CALL)
        while self._more("cancelled"):
            waiting = call(message.SerializeToString())
            await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.sleep(0.005)

    async def _hang_up(self) -> None:
        """Connections that end in the middle of a request, or before its answer."""
        whole = self._requests[0].sent
        while self._more("hung up"):
            _, writer = await asyncio.open_connection("127.0.0.1", self._http_port)
            writer.write(whole[: random.randrange(1, len(whole) + 1)])
            await writer.drain()
            writer.close()
            await asyncio.sleep(0.02)

    async def _reload(self) -> None:
        """The model that others ask for, anew, with another configuration each time."""
        for n in itertools.count():
            config = {
                "backend": "onnxruntime",
                "parameters": {"turn": {"string_value": str(n)}},
            }
            if not await self._control("loads", RELOADED, "load", {"config": config}):
                return

    async def _unload(self) -> None:
        while await self._control("loads", UNLOADED, "load", {}):
            await self._control("unloads", UNLOADED, "unload", {})

    async def _control(self, kind: str, model: str, verb: str, given: dict[str, Any]) -> bool:
        if not self._more(kind):
            return False
        given = {key: orjson.dumps(value).decode() for key, value in given.items()}
        body = orjson.dumps({"parameters": given})
        line = f"POST /v2/repository/models/{model}/{verb} HTTP/1.1\r\nHost: soak\r\n"
        sent = f"{line}Content-Length: {len(body)}\r\n\r\n".encode() + body
        connection = await Connection.open(self._http_port)
        self._expect(Request(sent, 200, b""), *await connection.ask(sent))
        connection.close()
        await asyncio.sleep(0.1)
        return True
