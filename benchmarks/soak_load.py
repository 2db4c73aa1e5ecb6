"""Mixed load on a server, every answer looked at, while its models come and go."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import grpc
from soak_control import Churn
from soak_requests import Request, grpc_requests, sequence_part
from soak_tally import Tally
from tritonclient.grpc import service_pb2

from fovea_server.bench.sender import Connection

CALL = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
Channel = Any  # grpc.aio has no types


class MixedLoad:
    """Clients of every kind, until so many requests have been answered.

    Args:
        http_port: of the server.
        grpc_port: of it.
        requests: over HTTP, chosen at random.
        model: see `Churn`.

    Attributes:
        tally: what was sent, and what was wrong.
    """

    def __init__(
        self, http_port: int, grpc_port: int, requests: Sequence[Request], model: bytes
    ) -> None:
        self._http_port, self._grpc_port = http_port, grpc_port
        self._requests, self._messages = list(requests), grpc_requests()
        self.tally = self._tally = Tally()
        self._churn = Churn(self._tally, http_port, model)

    async def run(self, requests: int) -> None:
        """Send so many requests, and hang up."""
        self._tally.left = requests
        target = f"127.0.0.1:{self._grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel, asyncio.TaskGroup() as group:
            for seed in range(6):
                group.create_task(self._http(seed))
            for seed in range(5):
                group.create_task(self._grpc(channel, seed))
            for seed in range(2):
                group.create_task(self._sequences(seed))
            group.create_task(self._stream(channel))
            group.create_task(self._cancel(channel))
            group.create_task(self._hang_up())
            for deed in self._churn.deeds:
                group.create_task(deed())

    async def _http(self, seed: int) -> None:
        connection = await Connection.connect("127.0.0.1", self._http_port)
        chosen = random.Random(seed)
        while self._tally.more("http"):
            request = chosen.choice(self._requests)
            self._tally.expect(request, *(await connection.ask(request.sent))[:2])
        connection.close()

    async def _grpc(self, channel: Channel, seed: int) -> None:
        call, chosen = channel.unary_unary(CALL), random.Random(seed)
        while self._tally.more("grpc"):
            request = chosen.choice(self._messages)
            try:
                self._tally.expect(request, 0, await call(request.sent))
            except grpc.aio.AioRpcError as error:
                self._tally.expect(request, error.code().value[0], (error.details() or "").encode())

    async def _stream(self, channel: Channel, length: int = 20) -> None:
        """Streams in which every message is answered, a wrong one too."""
        while self._tally.more("in a stream", length):
            sent = list(itertools.islice(itertools.cycle(self._messages), length))
            stream = channel.stream_stream(STREAM)(iter([request.sent for request in sent]))
            try:
                answers = [service_pb2.ModelStreamInferResponse.FromString(a) async for a in stream]
            except grpc.aio.AioRpcError as error:
                self._tally.errors.append(f"a stream ended with {error.code()}: {error.details()}")
                continue
            for request, answer in zip(sent, answers, strict=True):
                text = answer.SerializeToString()
                self._tally.expect(request, request.status if answer.error_message else 0, text)

    async def _sequences(self, seed: int, length: int = 4) -> None:
        """Sequences one after the other, whose requests are sent one after the other."""
        connection = await Connection.connect("127.0.0.1", self._http_port)
        for number in itertools.count(1 + seed, 2):
            if not self._tally.more("in a sequence", length):
                break
            for value in range(length):
                request = sequence_part(number, value, start=value == 0, end=value == length - 1)
                self._tally.expect(request, *(await connection.ask(request.sent))[:2])
            await asyncio.sleep(0.01)
        connection.close()

    async def _cancel(self, channel: Channel) -> None:
        """Callers who leave while their request waits for others to batch it with."""
        message = service_pb2.ModelInferRequest.FromString(self._messages[0].sent)
        message.model_name = "simple_dynbatch"
        call = channel.unary_unary(CALL)
        while self._tally.more("cancelled"):
            waiting = call(message.SerializeToString())
            await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.sleep(0.005)

    async def _hang_up(self) -> None:
        """Connections that end in the middle of a request, or before its answer."""
        whole = self._requests[0].sent
        while self._tally.more("hung up"):
            _, writer = await asyncio.open_connection("127.0.0.1", self._http_port)
            writer.write(whole[: random.randrange(1, len(whole) + 1)])
            await writer.drain()
            writer.close()
            await asyncio.sleep(0.02)
