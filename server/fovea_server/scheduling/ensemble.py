"""Schedulers of ensembles, which pass tensors between models, and of pipelines, which pass crops.

Source of ensembles (`ensemble_scheduling` of config.pbtxt): `ModelEnsembling` of
model_config.proto; `EnsembleScheduler` of Triton's core. `fovea_server.pipelines` defines
pipelines: the first model finds objects, and other models get crops of these objects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from fovea_engines.repository.model_config_scheduling import EnsembleStep
from fovea_preprocess.errors import DeadlineExceeded, FoveaError, InvalidRequest, QueueFull
from fovea_preprocess.text import counted
from fovea_server.observability.model_statistics import FailureReason, ModelStatistics, StageTimes
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.model_io import ModelIO, Outputs
from fovea_server.tensors.messages import (
    ImageRequest,
    ImageResult,
    InferRequest,
    InferResponse,
    InputTensor,
    RequestedOutput,
)

FindScheduler = Callable[[str, int | None], Scheduler]
"""Looks up the scheduler of a model by name and version; a version of None is the current one."""
Results = list[ImageResult | FoveaError]


class EnsembleScheduler(Scheduler):
    """Runs the steps of an ensemble: each step as soon as its inputs exist, and some in parallel.

    The models that the steps run ("composing models") count their own statistics.

    Args:
        inputs: names of the ensemble's inputs.
        steps: the steps, in any order.
        find: looks up the schedulers of the composing models.
    """

    def __init__(
        self,
        model_io: ModelIO,
        inputs: Iterable[str],
        steps: Sequence[EnsembleStep],
        statistics: ModelStatistics,
        find: FindScheduler,
    ) -> None:
        super().__init__()
        self._model_io = model_io
        self._inputs = frozenset(inputs)
        self._steps = steps
        self._statistics = statistics
        self._find = find

    @property
    def identity(self) -> bytes:
        """Bytes that identify the loaded ensemble and its composing models."""
        identities = [self._model_io.identity]
        for step in self._steps:
            # A request fails anyway if one of the models is missing, so the identity of that model
            # is left out.
            with suppress(FoveaError):
                identities.append(self._find(step.model_name, step.version).identity)
        return b"".join(identities)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Run all steps for a request, and return the ensemble's outputs."""
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            checked = await self._model_io.check_request(request)
            began_ns = time.monotonic_ns()
            parts: list[StageTimes] = []
            try:
                outputs = await self._outputs(replace(request, times=parts))
            except (FoveaError, asyncio.CancelledError) as error:
                known = isinstance(error, FoveaError)
                reason = FailureReason.OTHER if known else FailureReason.CANCELED
                self._statistics.count_failure(time.monotonic_ns() - arrived_ns, reason)
                raise
        # The queue times of the composing models are left out, as in Triton's core.
        _, *stages = map(sum, zip(StageTimes(), *parts, strict=True))
        times = StageTimes(began_ns - arrived_ns, *stages)
        self._statistics.count_execution(checked.rows, times)
        self._statistics.count_success(checked.rows, time.monotonic_ns() - arrived_ns, times)
        if request.times is not None:
            request.times.append(times)
        return self._model_io.respond(request, outputs)

    async def _outputs(self, request: InferRequest) -> Outputs:
        """Run all steps, and return all tensors by name."""
        tensors = {tensor.name: tensor for tensor in request.inputs}
        # Optional inputs that the request does not have. No step waits for these inputs.
        absent = self._inputs - tensors.keys()
        waiting = list(self._steps)
        running: set[asyncio.Task[list[InputTensor]]] = set()
        try:
            while True:
                have = tensors.keys() | absent
                ready = [step for step in waiting if have >= set(step.input_map.values())]
                waiting = [step for step in waiting if step not in ready]
                running |= {
                    asyncio.create_task(self._run(step, request, tensors)) for step in ready
                }
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # The errors of all tasks are retrieved, because asyncio logs an error that nobody
                # retrieves.
                errors = [error for task in done if (error := task.exception()) is not None]
                if errors:
                    raise errors[0]
                for task in done:
                    tensors |= {tensor.name: tensor for tensor in task.result()}
        finally:
            for task in running:
                task.cancel()
        return {
            tensor.name: tensor.data.reshape(tensor.shape)
            for tensor in tensors.values()
            if not isinstance(tensor.data, memoryview)
        }

    async def _run(
        self, step: EnsembleStep, request: InferRequest, tensors: Mapping[str, InputTensor]
    ) -> list[InputTensor]:
        """Run one step, and return its outputs under the names that they have in the ensemble."""
        part = replace(
            request,
            model_name=step.model_name,
            model_version=step.version,
            inputs=[
                replace(tensors[tensor], name=name)
                for name, tensor in step.input_map.items()
                if tensor in tensors
            ],
            outputs=[RequestedOutput(name) for name in step.output_map],
        )
        try:
            response = await self._find(step.model_name, step.version).infer(part)
        except FoveaError as error:
            raise error.with_text(f"in ensemble '{self._model_io.name}', {error}") from error
        return [
            InputTensor(step.output_map[made.name], made.datatype, made.shape, made.array.ravel())
            for made in response.outputs
        ]


class PipelineScheduler(Scheduler):
    """Accepts the requests of a pipeline and counts them; the models count their own executions.

    Args:
        predict: runs the pipeline, and returns one result or error for each image.
        most: largest number of accepted images without a result.
    """

    def __init__(
        self,
        model_io: ModelIO,
        predict: Callable[[ImageRequest], Awaitable[Results]],
        statistics: ModelStatistics,
        most: int,
    ) -> None:
        super().__init__()
        self._model_io = model_io
        self._predict = predict
        self._statistics = statistics
        self._most = most
        self._inside = 0

    @property
    def identity(self) -> bytes:
        """Bytes that identify the loaded pipeline."""
        return self._model_io.identity

    @property
    def accepted(self) -> int:
        """Number of accepted images without a result."""
        return self._inside

    async def infer(self, request: InferRequest) -> InferResponse:
        """Reject tensor requests, because later stages need an image from which to cut crops."""
        name, [image, *_] = self._model_io.name, self._model_io.inputs
        for tensor in request.inputs:
            if tensor.name not in self._model_io.inputs:
                raise InvalidRequest(
                    f"model '{name}' has no input '{tensor.name}': send encoded images as BYTES "
                    f"to the input '{image}'"
                )
        raise InvalidRequest(
            f"model '{name}' is a pipeline and does not accept tensors: send encoded images as "
            f"BYTES to the input '{image}'"
        )

    async def predict(self, request: ImageRequest) -> Results:
        """Return one result or error for each image.

        Raises:
            QueueFull: the pipeline has no room for the images.
            ShuttingDown: the gate is closed.
        """
        arrived_ns, count = time.monotonic_ns(), len(request.images)
        with self.gate.open_for(request):
            if self._inside and self._inside + count > self._most:
                self._statistics.count_failure(0, FailureReason.REJECTED)
                raise QueueFull(
                    f"the queue is full: {counted(self._inside, 'image')} in flight, and no room "
                    f"for {count} more (--max-queue); send the request again after the time in "
                    "Retry-After",
                    retry_after_s=1.0,
                )
            self._inside += count
            try:
                results = await self._predict(request)
            except (FoveaError, asyncio.CancelledError) as error:
                self._statistics.count_failure(time.monotonic_ns() - arrived_ns, _reason(error))
                raise
            finally:
                self._inside -= count
        total_ns = time.monotonic_ns() - arrived_ns
        for result in results:
            if isinstance(result, FoveaError):
                self._statistics.count_failure(total_ns, _reason(result))
                continue
            stages = result.times
            # The time in the models after the first model counts as output.
            output_ns = max(0, total_ns - stages.queue - stages.input - stages.infer)
            times = stages._replace(output=output_ns)
            self._statistics.count_execution(1, times)
            self._statistics.count_success(1, total_ns, times)
            self._statistics.stages.observe(stages)
        return results


def _reason(error: BaseException) -> FailureReason:
    if isinstance(error, asyncio.CancelledError):
        return FailureReason.CANCELED
    known = isinstance(error, DeadlineExceeded | QueueFull)
    return FailureReason.REJECTED if known else FailureReason.OTHER
