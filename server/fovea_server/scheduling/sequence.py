"""Runs sequences of requests (`sequence_batching`) in order, with control inputs and states.

Engines keep no memory between calls, so a sequence is not bound to a slot of an instance. The
strategies "direct" and "oldest" therefore differ only in the time for which a batch waits. The
scheduler stores the states (`state`) between requests, and passes them to the engine as inputs.

Source: `ModelSequenceBatching` of model_config.proto; `SequenceBatchScheduler` of Triton's core.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from fovea_engines.repository.model_config_scheduling import (
    Control,
    ModelSequenceBatching,
    SequenceState,
)
from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest, UnsupportedModel
from fovea_server.scheduling.base import SchedulerWrapper
from fovea_server.scheduling.model_io import Outputs
from fovea_server.scheduling.queue_scheduler import QueueScheduler
from fovea_server.tensors.check import CheckedRequest
from fovea_server.tensors.messages import InferRequest, InferResponse
from fovea_server.tensors.wire import NUMPY, protocol_name

_Maker = Callable[[InferRequest], Array]


@dataclass(slots=True, eq=False)
class _Sequence:
    last_ns: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    states: dict[str, Array] = field(default_factory=dict)


class SequenceScheduler(SchedulerWrapper):
    """Runs the requests of a sequence one after the other, in batches with other sequences.

    Raises:
        UnsupportedModel: the configuration gives no values for a control input, or an initial state
            is in a file.
    """

    def __init__(
        self, inside: QueueScheduler, sequences: ModelSequenceBatching, *, batched: bool
    ) -> None:
        super().__init__(inside)
        self._rows = inside
        self._waiting = 0
        shape = (1, 1) if batched else (1,)
        self._controls = {
            tensor.name: _maker(tensor.name, control, shape)
            for tensor in sequences.control_input
            for control in tensor.control
        }
        self._states = sequences.state
        self._initial = {state.input_name: _initial(state, batched) for state in sequences.state}
        self._idle_ns = 1000 * sequences.max_sequence_idle_microseconds
        # Ordered by last use: the sequence that has been idle longest comes first.
        self._sequences: OrderedDict[int | str, _Sequence] = OrderedDict()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Return the response to a request, after the earlier requests of its sequence."""
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            checked = await self._rows.model_io.check_request(request)
            sequence = self._sequence(request, checked, arrived_ns)
            async with self._turn_of(sequence):
                outputs = await self._run(request, checked, sequence, arrived_ns)
        return self._rows.model_io.respond(request, outputs)

    def holds(self, sequence: int | str) -> bool:
        """Return whether a sequence has begun in this scheduler and has not ended."""
        return sequence in self._sequences

    @property
    def pending(self) -> int:
        """Number of requests that wait for the engine, or for an earlier request in a sequence."""
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
        self, request: InferRequest, checked: CheckedRequest, sequence: _Sequence, arrived_ns: int
    ) -> Outputs:
        if request.sequence_start:
            sequence.states = dict(self._initial)
        checked.feeds.update((name, make(request)) for name, make in self._controls.items())
        checked.feeds.update(sequence.states)
        outputs = await self._rows.run(request, checked, arrived_ns)
        sequence.states = {state.input_name: outputs[state.output_name] for state in self._states}
        return outputs

    def _sequence(self, request: InferRequest, checked: CheckedRequest, now_ns: int) -> _Sequence:
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


def _initial(state: SequenceState, batched: bool) -> Array:
    if any(initial.data_file for initial in state.initial_state):
        raise UnsupportedModel(
            f"the initial value of state '{state.input_name}' is in a data_file, which is not "
            "supported: use zero_data"
        )
    sizes = [1 if size < 0 else size for size in state.dims]
    lead = (1,) if batched else ()
    return np.zeros((*lead, *sizes), NUMPY[protocol_name(state.data_type)])


def _maker(name: str, control: Control, shape: tuple[int, ...]) -> _Maker:
    if control.kind == "CONTROL_SEQUENCE_CORRID":
        number = protocol_name(control.data_type)
        return lambda request: _correlation_id(name, request.sequence_id, number, shape)
    values = _false_true(control)
    if len(values) != 2:
        raise UnsupportedModel(f"control input '{name}' needs a value for false and one for true")
    no, yes = (np.full(shape, value) for value in values)
    if control.kind == "CONTROL_SEQUENCE_START":
        return lambda request: yes if request.sequence_start else no
    if control.kind == "CONTROL_SEQUENCE_END":
        return lambda request: yes if request.sequence_end else no
    # The control input READY is always true, because each row of a batch belongs to a request.
    return lambda request: yes


def _false_true(control: Control) -> Array:
    if control.fp32_false_true:
        return np.array(control.fp32_false_true, np.float32)
    if control.bool_false_true:
        return np.array(control.bool_false_true, np.bool_)
    return np.array(control.int32_false_true, np.int32)


def _correlation_id(
    model_input: str, sequence: int | str, datatype: str, shape: tuple[int, ...]
) -> Array:
    if datatype == "BYTES":
        array = np.empty(shape, object)
        array.fill(str(sequence).encode())
        return array
    if isinstance(sequence, str):
        raise InvalidRequest(
            f"the sequence_id '{sequence}' is a text, but the model's input '{model_input}' needs "
            "a number: send a number as the sequence_id"
        )
    return np.full(shape, sequence % 2**64, np.uint64).astype(NUMPY[datatype])
