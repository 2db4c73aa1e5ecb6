"""A request for tensors and its answer, as no transport spells them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fovea_engines.session import Array
from fovea_server.statistics.model import Spans
from fovea_server.tensors.request_trace import RequestTrace

Parameter = bool | int | float | str


@dataclass(slots=True, eq=False)
class InputTensor:
    """One input of a request, not yet compared with the model.

    Attributes:
        name: as sent.
        datatype: the protocol's name, as sent.
        shape: as sent; the batch comes first where the model has one.
        data: the wire's binary form (BYTES with their lengths before them) as a view; or an array
            of the elements, flat, where the transport has them one by one (BYTES: objects of
            `bytes`).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | Array


@dataclass(slots=True, eq=False)
class RequestedOutput:
    """One output that is asked for; `classification` of 0 asks for the tensor itself."""

    name: str
    classification: int = 0


@dataclass(slots=True, eq=False)
class InferRequest:
    """What a client asks of a model.

    Attributes:
        model_name: of the model.
        model_version: of it; None for the one that the version policy prefers.
        inputs: in the client's order.
        outputs: in the client's order; empty for all.
        id: handed back; "" for none.
        parameters: what is not in one of the fields below.
        priority: 0 for the model's default; else 1 is the highest.
        timeout_us: microseconds that it may wait; 0 for the model's default.
        sequence_id: 0 or "" for none.
        sequence_start: first of its sequence.
        sequence_end: last of its sequence.
        trace: where its timestamps go; None for nearly all.
        spans: where the engine's part is noted for an ensemble; None for nearly all.
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


@dataclass(slots=True, eq=False)
class OutputTensor:
    """One output of an answer.

    Attributes:
        name: of the output.
        datatype: the protocol's name.
        array: C-contiguous, of the output's shape; BYTES are objects of `bytes`.
    """

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.array.shape


@dataclass(slots=True, eq=False)
class InferResponse:
    """What a model answers; outputs are in the order of its configuration."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
