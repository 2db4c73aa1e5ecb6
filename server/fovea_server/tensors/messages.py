"""A request for tensors and its answer, independent of the transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fovea_engines.session import Array
from fovea_server.observability.stages import StageTimes

if TYPE_CHECKING:
    from fovea_server.traffic.triton_trace import TimedRequest

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
        times: collects those of the engines, for an ensemble or a trace; None for nearly all.
        batch: rows of the execution that answered it, where `times` are collected.
        client: takes turns with others in the queue; "" where it is not known.
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
    trace: TimedRequest | None = None
    times: list[StageTimes] | None = None
    batch: int = 0
    client: str = ""


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
