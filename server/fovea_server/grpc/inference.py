"""Handles the calls ModelInfer and ModelStreamInfer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import FoveaError, QueueFull
from fovea_server.byte_budget import ByteBudget, Reservation
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.v2_documents import refuse_decoupled
from fovea_server.error_status import grpc_status
from fovea_server.grpc.calls import LARGE, Context, Rpc, fault, refuse
from fovea_server.grpc.infer_request import InferMessage, parse_infer, read_request, version_of
from fovea_server.grpc.parameters import set_parameter
from fovea_server.tensors.messages import InferRequest, InferResponse
from fovea_server.tensors.shared_memory import OutputPlace
from fovea_server.tensors.wire import wire
from fovea_server.traffic.call import Call

# Divisor of the budget: a stream may hold a quarter of it. A few streams whose clients do not read
# then leave room for other requests.
_SHARE = 4

FINAL = "triton_final_response"
"""Parameter of every streamed response that marks the last response of a request."""

# Tags of `raw_output_contents` and `infer_response`; both fields are length-delimited.
_RAW = bytes([6 << 3 | 2])
_STREAMED = bytes([2 << 3 | 2])

log = logging.getLogger(__name__)

# Sizes in bytes of outputs whose copy would block the event loop. BYTES arrays hold pointers, and
# their elements are copied one by one.
_LARGE_NUMBERS = 4 << 20
_LARGE_STRINGS = 64 << 10
# Metadata of a client that wants the stream to end with the status of its first error.
_STRICT = ("triton_grpc_error", "true")
# Largest number of bytes of requests and responses that a stream may hold. A single
# request may be larger.
_MAX_BYTES = 64 << 20
# Seconds to wait for messages that are in transit when the server stops.
_ON_THE_WAY_S = 0.1


class StreamBudget:
    """Reserves bytes for the responses of one stream, in the order of its requests.

    The order prevents a deadlock: a response never waits for bytes that only later
    responses release.

    Attributes:
        size: number of bytes of all responses that are not written yet.
        budget: budget of the server.
        waiting: reservations of earlier requests that have not reserved their bytes.
        freed: set when bytes or a turn become free.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size = 0
        self.budget = budget
        self.waiting: deque[StreamReservation] = deque()
        self.freed = asyncio.Event()
        self._most = min(_MAX_BYTES, budget.limit // _SHARE)

    def next(self) -> StreamReservation:
        """Make the reservation of the next request."""
        reservation = StreamReservation(self)
        self.waiting.append(reservation)
        return reservation

    def has_room(self, size: int) -> bool:
        """Return True if another response fits. The first response always fits."""
        if not self.size:
            return True
        return self.size + size <= self._most and self.budget.has_room(size)

    def release(self) -> None:
        """Release all bytes after the stream has ended."""
        self.budget.count_answer(-self.size)
        self.size = 0


class StreamReservation(Reservation):
    """Reserves the bytes of one response of a stream."""

    __slots__ = ("_stream_budget",)

    def __init__(self, stream_budget: StreamBudget) -> None:
        super().__init__(stream_budget.budget)
        self._stream_budget = stream_budget

    async def reserve(self, size: int, timeout_s: float = 0.0) -> None:
        """Wait for the turn of this response and for room, and reserve its bytes."""
        stream_budget = self._stream_budget
        while stream_budget.waiting[0] is not self or not stream_budget.has_room(size):
            stream_budget.freed.clear()
            await stream_budget.freed.wait()
        await super().reserve(size, timeout_s)
        stream_budget.size += size
        self.pass_on()

    def resize(self, size: int) -> None:
        """Replace the expected size by the actual size in bytes."""
        before = self.size
        super().resize(size)
        self._stream_budget.size += size - before
        self._stream_budget.freed.set()

    def pass_on(self) -> None:
        """Let the next request reserve its bytes, also if this one has reserved none."""
        stream_budget = self._stream_budget
        if self in stream_budget.waiting:
            stream_budget.waiting.remove(self)
            stream_budget.freed.set()


def response_bytes(response: InferResponse, shared: Mapping[str, OutputPlace]) -> bytes:
    """Encode a `ModelInferResponse`, and write the outputs in `shared` to shared memory."""
    head = messages.ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for name, value in response.parameters.items():
        set_parameter(head.parameters[name], value)
    parts: list[bytes | memoryview] = [b""]
    for tensor in response.outputs:
        head.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.name in shared:
            shared[tensor.name].write(tensor.name, wire(tensor))
            parts += (_RAW, b"\0")
        else:
            data = wire(tensor)
            parts += (_RAW, _varint(len(data)), data)
    parts[0] = head.SerializeToString()
    return b"".join(parts)


def streamed_bytes(response: bytes) -> bytes:
    """Wrap an encoded response in a `ModelStreamInferResponse`."""
    return b"".join((_STREAMED, _varint(len(response)), response))


def streamed_error(request_id: str, message: str) -> bytes:
    """Encode a `ModelStreamInferResponse` with an error."""
    answer = messages.ModelStreamInferResponse(error_message=message)
    answer.infer_response.id = request_id
    answer.infer_response.parameters[FINAL].bool_param = True
    data: bytes = answer.SerializeToString()
    return data


def _varint(number: int) -> bytes:
    """Encode a length as protobuf does: seven bits per byte, the low bits first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class Inference:
    """Runs models for the calls ModelInfer and ModelStreamInfer."""

    def __init__(self, service: Service) -> None:
        self._plane = service.plane
        self._regions = service.extensions.regions
        self._budget = service.budget
        self._most_streamed = service.settings.max_queue
        self._streams: set[InferStream] = set()
        self._under_way = 0
        self._released = asyncio.Event()
        self._released.set()

    def read(self, data: bytes) -> InferMessage:
        """Parse a request.

        Raises:
            InvalidRequest: the bytes are not a `ModelInferRequest`.
        """
        return parse_infer(data)

    async def infer(self, message: InferMessage) -> bytes:
        """Run a model, and return the bytes of a `ModelInferResponse`."""
        self._under_way += 1
        try:
            return await self._infer(message)
        finally:
            await self._released.wait()
            self._under_way -= 1

    @asynccontextmanager
    async def hold_answers(self) -> AsyncIterator[None]:
        """Return a context manager that delays responses while the server closes its connections.

        gRPC cancels calls that arrive during the closing. Most clients send no new request
        while they wait for a response, so the delay protects their next calls. Nothing is
        delayed if no client waits.
        """
        held = self._under_way > 0
        if held:
            self._released.clear()
            await asyncio.sleep(_ON_THE_WAY_S)
        try:
            yield
            if held:
                await asyncio.sleep(_ON_THE_WAY_S)
        finally:
            self._released.set()

    async def _infer(self, message: InferMessage) -> bytes:
        version = version_of(message.fields.model_version)
        model = self._plane.models.find(message.fields.model_name, version)
        refuse_decoupled(model, "ModelInfer RPC")
        request, shared = await self._request(message, version)
        reservation = Reservation(self._budget)
        try:
            return await _answer(await self._plane.infer(model, request, reservation), shared)
        finally:
            # The call counts a large response again at once.
            reservation.release()

    async def stream(self, requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
        """Answer the requests of a stream. The error of a request is in its response."""
        stream = InferStream(self.answer_streamed, self._most_streamed, self._budget)
        self._streams.add(stream)
        try:
            await stream.run(requests, context, rpc)
        finally:
            self._streams.discard(stream)

    def close(self) -> None:
        """End each stream as soon as its requests are answered."""
        for stream in self._streams:
            stream.close()

    async def answer_streamed(self, data: bytes, reservation: Reservation) -> StreamedAnswer:
        """Answer one request of a stream; `reservation` keeps the bytes of the response."""
        request_id, model, large = "", "", len(data) >= LARGE
        try:
            message = await asyncio.to_thread(parse_infer, data) if large else parse_infer(data)
            request_id, model = message.fields.id, message.model_name
            version = version_of(message.fields.model_version)
            # The error for an unknown model takes precedence over errors of the tensors.
            found = self._plane.models.find(message.fields.model_name, version)
            request, shared = await self._request(message, version)
            response = await self._plane.infer(found, request, reservation)
            response.parameters[FINAL] = True
            return StreamedAnswer(request_id, await _answer(response, shared), model)
        except FoveaError as error:
            return StreamedAnswer(request_id, error, model)
        except Exception:
            log.exception("a streamed request failed")
            return StreamedAnswer(request_id, fault(), model)

    async def _request(
        self, message: InferMessage, version: int | None
    ) -> tuple[InferRequest, dict[str, OutputPlace]]:
        if message.size < LARGE:
            return read_request(message, version, self._regions)
        return await asyncio.to_thread(read_request, message, version, self._regions)


async def _answer(response: InferResponse, shared: Mapping[str, OutputPlace]) -> bytes:
    for tensor in response.outputs:
        strings = tensor.datatype == "BYTES"
        if tensor.array.nbytes > (_LARGE_STRINGS if strings else _LARGE_NUMBERS):
            return await asyncio.to_thread(response_bytes, response, shared)
    return response_bytes(response, shared)


class StreamedAnswer(NamedTuple):
    """The response to one request of a stream."""

    request_id: str
    answer: bytes | FoveaError
    model: str


class PendingAnswer(NamedTuple):
    """A request of a stream whose response is not written yet."""

    task: asyncio.Task[StreamedAnswer]
    reservation: StreamReservation


class InferStream:
    """Runs the requests of a stream concurrently, and writes the responses in order."""

    def __init__(
        self,
        infer: Callable[[bytes, Reservation], Awaitable[StreamedAnswer]],
        most: int,
        budget: ByteBudget,
    ) -> None:
        self._infer = infer
        self._most = most
        self._budget = budget
        # Number of requests in flight, and their bytes in the budget.
        self._under_way = self._held = 0
        self._stream_budget = StreamBudget(budget)
        self._freed = asyncio.Event()
        # Pending responses in the order of the requests; None after the last one.
        self._begun: asyncio.Queue[PendingAnswer | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[StreamedAnswer]] = set()
        self._reader: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
        """Write responses until the client's last request.

        A cancellation of this method cancels the requests in flight.
        """
        strict = _STRICT in (context.invocation_metadata() or ())
        self._reader = asyncio.create_task(self._read(requests, rpc.call))
        try:
            while (begun := await self._begun.get()) is not None:
                request_id, answer, rpc.call.model = await begun.task
                if isinstance(answer, bytes):
                    await rpc.write(streamed_bytes(answer))
                elif strict:
                    await refuse(context, answer)
                else:
                    await rpc.write(streamed_error(request_id, str(answer)))
                begun.reservation.release()
                self._under_way -= 1
                self._freed.set()
        finally:
            for running in (self._reader, *self._tasks):
                running.cancel()
            # Cancelled tasks do not run again. Waiting for them here could be cancelled, too.
            self._give_back(self._held)
            self._stream_budget.release()

    def close(self) -> None:
        """Stop reading requests. The stream ends when all requests that were read are answered."""
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, requests: AsyncIterator[bytes], call: Call) -> None:
        try:
            async for data in requests:
                while not self._has_room(len(data)):
                    self._freed.clear()
                    await self._freed.wait()
                self._under_way += 1
                full, reservation = self._take(len(data)), self._stream_budget.next()
                task = asyncio.ensure_future(self._answer(data, full, reservation, call))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._begun.put_nowait(PendingAnswer(task, reservation))
        finally:
            self._begun.put_nowait(None)

    async def _answer(
        self, data: bytes, full: FoveaError | None, reservation: StreamReservation, call: Call
    ) -> StreamedAnswer:
        try:
            part = call.part()
        except FoveaError as ended:
            # The key of the call is no longer valid.
            part, full = call.part(admitted=False), ended
        part.infers(call.path.removeprefix("/"))
        part.enter()
        if full is not None:
            outcome = StreamedAnswer("", full, "")
        else:
            outcome = await self._outcome(data, reservation)
        reservation.pass_on()
        error = outcome.answer if isinstance(outcome.answer, FoveaError) else None
        part.model = outcome.model
        part.measure("OK" if error is None else grpc_status(error), error)
        return outcome

    async def _outcome(self, data: bytes, reservation: Reservation) -> StreamedAnswer:
        outcome = await self._infer(data, reservation)
        self._give_back(len(data))
        try:
            reservation.resize(len(outcome.answer) if isinstance(outcome.answer, bytes) else 0)
        except QueueFull as full:
            reservation.release()
            return outcome._replace(answer=full)
        return outcome

    def _has_room(self, size: int) -> bool:
        if not self._under_way:
            return True
        held = self._held + self._stream_budget.size
        return self._under_way < self._most and held + size <= _MAX_BYTES

    def _take(self, size: int) -> FoveaError | None:
        """Reserve bytes of the budget, or return the error if they exceed it."""
        try:
            self._budget.take(size)
        except QueueFull as full:
            return full
        self._held += size
        return None

    def _give_back(self, size: int) -> None:
        self._budget.give_back(size)
        self._held -= size
        self._freed.set()
