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

# A stream may hold the memory budget divided by this number. Several streams whose clients do not
# read their responses still leave memory for other requests.
_SHARE = 4

FINAL = "triton_final_response"
"""Parameter of streamed responses. It is true in the last response to a request."""

# Tags of the fields `raw_output_contents` and `infer_response`. Both fields are length-delimited.
_RAW = bytes([6 << 3 | 2])
_STREAMED = bytes([2 << 3 | 2])

log = logging.getLogger(__name__)

# Sizes in bytes. Larger outputs are copied in a thread, because the copy would block the event
# loop. The limit for BYTES is lower, because its elements are copied one by one.
_LARGE_NUMBERS = 4 << 20
_LARGE_STRINGS = 64 << 10
# Metadata of a client that requests that the first error ends the stream with the error's status.
_STRICT = ("triton_grpc_error", "true")
# Largest number of bytes of the requests and responses that a stream holds at once. A single larger
# request is accepted if the stream holds no other.
_MAX_BYTES = 64 << 20
# Time in seconds for which a stopping server waits for messages that are in transit.
_ON_THE_WAY_S = 0.1


class StreamBudget:
    """Reserves bytes for the responses of one stream, in the order of its requests.

    The order prevents a deadlock: a response never waits for bytes that only later
    responses release.

    Attributes:
        size: number of reserved bytes, for all responses that are not written yet.
        budget: memory budget of the server.
        waiting: reservations whose bytes are not reserved yet, in the order of their requests.
        freed: event that is set when bytes are released or the next reservation may begin.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size = 0
        self.budget = budget
        self.waiting: deque[StreamReservation] = deque()
        self.freed = asyncio.Event()
        self._most = min(_MAX_BYTES, budget.limit // _SHARE)

    def next(self) -> StreamReservation:
        """Create the reservation for the next request."""
        reservation = StreamReservation(self)
        self.waiting.append(reservation)
        return reservation

    def has_room(self, size: int) -> bool:
        """Return whether another response of this size fits. The first response always fits."""
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
        """Wait until earlier responses have reserved their bytes, and until this response fits.

        Then reserve the bytes of this response.
        """
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
        """Let the next request reserve its bytes, even if this request has reserved none."""
        stream_budget = self._stream_budget
        if self in stream_budget.waiting:
            stream_budget.waiting.remove(self)
            stream_budget.freed.set()


def response_bytes(response: InferResponse, shared: Mapping[str, OutputPlace]) -> bytes:
    """Encode a `ModelInferResponse`, and write the outputs that `shared` lists to shared memory."""
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
    """Encode a length like protobuf: seven bits per byte, starting with the lowest bits."""
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

        gRPC cancels calls that arrive during the closing. Most clients send no new request while
        they wait for a response, so the delay protects their next calls. If no client waits for a
        response, the context manager delays nothing.
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
            # Release the bytes here, because the handler of the call counts a large response again.
            reservation.release()

    async def stream(self, requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
        """Answer the requests of a stream. If a request fails, its response contains the error."""
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
        """Answer one request of a stream. `reservation` counts the bytes of the response."""
        request_id, model, large = "", "", len(data) >= LARGE
        try:
            message = await asyncio.to_thread(parse_infer, data) if large else parse_infer(data)
            request_id, model = message.fields.id, message.model_name
            version = version_of(message.fields.model_version)
            # Look up the model before the tensors are parsed, because Triton reports an unknown
            # model first.
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
        # Number of requests in flight, and number of their bytes in the memory budget.
        self._under_way = self._held = 0
        self._stream_budget = StreamBudget(budget)
        self._freed = asyncio.Event()
        # Pending responses in the order of their requests. None follows the last response.
        self._begun: asyncio.Queue[PendingAnswer | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[StreamedAnswer]] = set()
        self._reader: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
        """Write responses until the client's last request is answered.

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
            # Release the bytes here, because cancelled tasks do not release them. Do not wait for
            # the tasks: this task could be cancelled again while it waits.
            self._give_back(self._held)
            self._stream_budget.release()

    def close(self) -> None:
        """Stop reading requests. The stream ends after the requests that were read are answered."""
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
            # The API key of the call has become invalid during the stream.
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
        """Count bytes in the memory budget.

        If they do not fit, return the error, otherwise None.
        """
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
