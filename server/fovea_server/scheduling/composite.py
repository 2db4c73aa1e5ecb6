"""Models made of several that take images: the first finds objects, others look at these.

`fovea_pipelines` reads what such a model is, and says what runs when. Here are the admission, the
counters, and the way to the queues of the models.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fovea_engines.engine import Engine
from fovea_preprocess.errors import DeadlineExceeded, FoveaError, InvalidRequest, QueueFull
from fovea_preprocess.plural import counted
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.contract import Contract
from fovea_server.statistics.model import FailureReason, ModelStatistics, Spans
from fovea_server.tensors.image_messages import ImageRequest, ImageResult
from fovea_server.tensors.messages import InferRequest, InferResponse

Results = list[ImageResult | FoveaError]
Ask = Callable[[str, ImageRequest], Awaitable[tuple[Engine, Results]]]
"""Has a model answer images; returns its engine as it is now, and a result for each."""
Predict = Callable[[ImageRequest], Awaitable[Results]]


class CompositeScheduler(Scheduler):
    """Admits requests to a composite. The models count their own work.

    Args:
        most: images accepted and not yet answered.
    """

    def __init__(
        self, contract: Contract, predict: Predict, statistics: ModelStatistics, most: int
    ) -> None:
        super().__init__()
        self._contract = contract
        self._predict = predict
        self._statistics = statistics
        self._most = most
        self._inside = 0

    @property
    def identity(self) -> bytes:
        """Identify the loaded model."""
        return self._contract.identity

    @property
    def accepted(self) -> int:
        """Number of images not yet answered."""
        return self._inside

    async def infer(self, request: InferRequest) -> InferResponse:
        """Refuse tensors, which later stages could not be cut from."""
        name, [image, *_] = self._contract.name, self._contract.inputs
        for tensor in request.inputs:
            if tensor.name not in self._contract.inputs:
                raise InvalidRequest(
                    f"model '{name}' has no input '{tensor.name}': send encoded images to "
                    f"'{image}', as BYTES"
                )
        raise InvalidRequest(
            f"model '{name}' is made of several and takes no tensors: send encoded images to "
            f"'{image}', as BYTES"
        )

    async def predict(self, request: ImageRequest) -> Results:
        """Answer images."""
        arrived_ns, count = time.monotonic_ns(), len(request.images)
        with self.gate.open_for(request):
            if self._inside and self._inside + count > self._most:
                self._statistics.failed(0, FailureReason.REJECTED)
                raise QueueFull(
                    f"{counted(self._inside, 'image')} accepted and not yet answered, and no room "
                    f"for {count} more (--max-queue); send again after the time in Retry-After",
                    retry_after_s=1.0,
                )
            self._inside += count
            try:
                results = await self._predict(request)
            except (FoveaError, asyncio.CancelledError) as error:
                self._statistics.failed(time.monotonic_ns() - arrived_ns, _reason(error))
                raise
            finally:
                self._inside -= count
        total_ns = time.monotonic_ns() - arrived_ns
        for result in results:
            if isinstance(result, FoveaError):
                self._statistics.failed(total_ns, _reason(result))
                continue
            timing = result.timing
            seconds = timing.queue, timing.decode + timing.letterbox, timing.infer
            queue, made, ran = (round(1e9 * each) for each in seconds)
            spans = Spans(queue, made, ran, max(0, total_ns - queue - made - ran))
            self._statistics.executed(1, spans)
            self._statistics.succeeded(1, total_ns, spans)
            self._statistics.stages.observe(timing)
        return results


def _reason(error: BaseException) -> FailureReason:
    if isinstance(error, asyncio.CancelledError):
        return FailureReason.CANCELED
    known = isinstance(error, DeadlineExceeded | QueueFull)
    return FailureReason.REJECTED if known else FailureReason.OTHER
