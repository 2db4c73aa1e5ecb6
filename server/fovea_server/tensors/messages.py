"""A request for tensors and its answer, independent of the transport."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fovea_engines.session import Array
from fovea_server.statistics.model import Spans

Parameter = bool | int | float | str


@dataclass(slots=True, eq=False)
class InputTensor:
    """One input of a request, as it was sent.

    Attributes:
        datatype: the protocol's name.
        shape: the batch comes first where the model has one.
        data: a view of the binary form on the wire (BYTES with their lengths); or a flat array of
            elements, from a transport that sends them one by one (BYTES: objects of `bytes`).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | Array


@dataclass(slots=True, eq=False)
class RequestedOutput:
    """One requested output; a `classification` of 0 requests the tensor itself."""

    name: str
    classification: int = 0


class RequestTrace:
    """Records the timestamps of a request, ns of the monotonic clock, from its construction."""

    def __init__(self, number: int, model: str, version: int, request_id: str) -> None:
        self.model = model
        self._number = number
        self._about = {"id": number, "model_name": model, "model_version": version}
        if request_id:
            self._about["request_id"] = request_id
        self._stamps: list[dict[str, Any]] = []
        self._mark("REQUEST_START", time.monotonic_ns())

    def computed(self, spans: Spans) -> None:
        """Record the times of the engine."""
        end = time.monotonic_ns()
        output = end - spans.compute_output
        infer = output - spans.compute_infer
        start = infer - spans.compute_input
        self._mark("QUEUE_START", start - spans.queue)
        self._mark("COMPUTE_START", start)
        self._mark("COMPUTE_INPUT_END", infer)
        self._mark("COMPUTE_OUTPUT_START", output)
        self._mark("COMPUTE_END", end)

    def entries(self) -> list[dict[str, Any]]:
        """Make the entries for a trace file, and record the end."""
        self._mark("REQUEST_END", time.monotonic_ns())
        return [self._about, {"id": self._number, "timestamps": self._stamps}]

    def _mark(self, name: str, ns: int) -> None:
        self._stamps.append({"name": name, "ns": ns})


@dataclass(slots=True, eq=False)
class InferRequest:
    """A request for tensors.

    Attributes:
        model_version: None for the one that the version policy prefers.
        outputs: in the client's order; empty for all.
        id: returned with the answer; "" for none.
        parameters: all that have no field below.
        priority: 0 for the model's default; else 1 is the highest.
        timeout_us: longest time in the queue; 0 for the model's default.
        sequence_id: 0 or "" for none.
        trace: records its timestamps; None for nearly all.
        spans: collects the engine's times, for an ensemble or a trace; None for nearly all.
        batch: rows of the execution that answered it, where `spans` are collected.
    """

    model_name: str
    model_version: int | None
    inputs: list[InputTensor]
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    trace: RequestTrace | None = None
    spans: list[Spans] | None = None
    batch: int = 0


@dataclass(slots=True, eq=False)
class OutputTensor:
    """One output of an answer; the array is C-contiguous, and BYTES are objects of `bytes`."""

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape


@dataclass(slots=True, eq=False)
class InferResponse:
    """The answer of a model; outputs are in the order of its configuration."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
