"""Sequences of requests (`sequence_batching`): in order, with control inputs.

Engines have no memory between calls, so a sequence is not bound to a slot of an instance: "direct"
and "oldest" differ only in the time that a batch waits. States (`state`) are kept here and passed
to the engine as inputs.

Source: `ModelSequenceBatching` of model_config.proto; `SequenceBatchScheduler` of Triton's core.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.scheduling.batch import BatchScheduler
from fovea_server.scheduling.controls import Controls, States
from fovea_server.scheduling.job import Outputs
from fovea_server.scheduling.wrapper import SchedulerWrapper
from fovea_server.tensors.check import Checked
from fovea_server.tensors.messages import InferRequest, InferResponse


@dataclass(slots=True, eq=False)
class _Sequence:
    last_ns: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    states: dict[str, Array] = field(default_factory=dict)


class SequenceScheduler(SchedulerWrapper):
    """Runs the requests of a sequence one after the other.

    Args:
        inside: runs requests, in batches with those of other sequences.
        controls: inputs that give the position of a request in its sequence.
        states: passed from each request to the next.
        idle_us: microseconds without a request after which a sequence is forgotten.
    """

    def __init__(
        self, inside: BatchScheduler, controls: Controls, states: States, idle_us: int
    ) -> None:
        super().__init__(inside)
        self._batches = inside
        self._waiting = 0
        self._controls = controls
        self._states = states
        self._idle_ns = 1000 * idle_us
        # The longest idle sequence comes first.
        self._sequences: OrderedDict[int | str, _Sequence] = OrderedDict()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request after those before it in its sequence."""
        arrived_ns = time.monotonic_ns()
        with self._gate.open_for(request):
            checked = await self._batches.contract.checked(request)
            sequence = self._sequence(request, checked, arrived_ns)
            async with self._turn_of(sequence):
                outputs = await self._run(request, checked, sequence, arrived_ns)
        return self._batches.contract.respond(request, outputs)

    @property
    def pending(self) -> int:
        """Number of requests that wait for earlier ones of their sequence, or for the engine."""
        return self._waiting + super().pending

    @asynccontextmanager
    async def _turn_of(self, sequence: _Sequence) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await sequence.turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            sequence.turn.release()

    async def _run(
        self, request: InferRequest, checked: Checked, sequence: _Sequence, arrived_ns: int
    ) -> Outputs:
        if request.sequence_start:
            sequence.states = self._states.initial()
        checked.feeds.update(self._controls.feeds(request))
        checked.feeds.update(sequence.states)
        outputs = await self._batches.run(request, checked, arrived_ns)
        sequence.states = self._states.after(outputs)
        return outputs

    def _sequence(self, request: InferRequest, checked: Checked, now_ns: int) -> _Sequence:
        model, name = request.model_name, request.sequence_id
        if checked.rows > 1:
            raise InvalidRequest(
                f"inference request to model '{model}' must specify batch-size 1 due to "
                "requirements of sequence batcher"
            )
        if not name:
            raise InvalidRequest(
                f"inference request to model '{model}' must specify a non-zero or non-empty "
                "correlation ID"
            )
        self._forget_idle(now_ns)
        sequence = self._sequences.pop(name, None)
        if sequence is None:
            if not request.sequence_start:
                raise InvalidRequest(
                    f"inference request for sequence {name} to model '{model}' must specify the "
                    "START flag on the first request of the sequence"
                )
            sequence = _Sequence()
        sequence.last_ns = now_ns
        if not request.sequence_end:
            self._sequences[name] = sequence
        return sequence

    def _forget_idle(self, now_ns: int) -> None:
        while self._sequences:
            name, oldest = next(iter(self._sequences.items()))
            if now_ns - oldest.last_ns <= self._idle_ns or oldest.turn.locked():
                return
            del self._sequences[name]
