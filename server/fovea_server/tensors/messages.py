"""Requests for tensors and for images, and their responses, independent of the transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.image import DecodedImage
from fovea_server.observability.model_statistics import NO_TIMES, StageTimes

if TYPE_CHECKING:
    from fovea_server.traffic.triton_trace import TimedRequest

SentImage = bytes | bytearray | DecodedImage
"""An image of a request: an encoded file, or decoded pixels."""

Parameter = bool | int | float | str


class DecodingPlace(Protocol):
    """The turn of a large image among the images that are being decoded."""

    def end_decoding(self, left: int) -> None:
        """End the turn; `left` is the number of bytes that stay in use after decoding."""
        ...


Place = AbstractAsyncContextManager[DecodingPlace]
"""Context manager that waits for its turn to decode, and releases the bytes after the response."""


@dataclass(slots=True, eq=False)
class ImageRequest:
    """A request to run a model on images.

    Attributes:
        images: the images; each one gets its own result.
        options: prediction options, with class IDs instead of class names.
        keep_pixels: True to return the upright images with the results.
        encode: encodes a result for the transport, in the thread that computed it.
        id: request ID; see `InferRequest`.
        priority: priority in the queue; see `InferRequest`.
        timeout_us: longest time in the queue in microseconds; see `InferRequest`.
        trace: recorder of timestamps; see `InferRequest`.
        place_of: returns the turn for an image that is large to decode; None for other images.
        client: ID of the client; see `InferRequest`.
        cut: runs images in parts such as tiles; None to run each image as a whole.
    """

    images: Sequence[SentImage]
    options: PredictOptions
    keep_pixels: bool = False
    encode: Callable[[ImageResult], bytes] | None = None
    id: str = ""
    priority: int = 0
    timeout_us: int = 0
    trace: TimedRequest | None = None
    place_of: Callable[[SentImage], Place | None] = lambda image: None
    client: str = ""
    cut: Cut | None = None


@dataclass(slots=True, eq=False)
class ImageResult:
    """The result for one image.

    Attributes:
        width: width of the upright image in pixels.
        height: height of the upright image in pixels.
        orientation: EXIF orientation of the file, 1 to 8.
        found: result in pixels of the upright image; None if the head is unknown.
        tensors: raw output rows by output name if the head is unknown; otherwise None.
        pixels: upright image, uint8 [height, width, 3] RGB, if the request keeps it.
        batch: batch size of the execution; 0 if there was none or several.
        times: duration of the stages. For tiles, the slowest tile counts; rows of tiles that
            ran one after the other are summed.
        stages: duration of each stage of a pipeline in nanoseconds, by the stage's name.
        encoded: result of the request's `encode`; b"" without `encode`.
    """

    width: int
    height: int
    orientation: int
    found: TaskResult | None = None
    tensors: dict[str, Array] | None = None
    pixels: NDArray[np.uint8] | None = None
    times: StageTimes = NO_TIMES
    encoded: bytes = b""
    batch: int = 0
    stages: dict[str, int] | None = None


RunParts = Callable[[ImageRequest, Sequence[SentImage]], Awaitable[list[ImageResult | FoveaError]]]
"""Function that runs the model on other images instead of a request's own, such as on its tiles."""
Cut = Callable[[ImageRequest, RunParts], Awaitable[list[ImageResult | FoveaError]]]
"""Function that computes the results of a request's images from their parts with `RunParts`."""


@dataclass(slots=True, eq=False)
class InputTensor:
    """One input of a request as the client sent it.

    Attributes:
        name: name of the input.
        datatype: the protocol's name of the datatype.
        shape: shape; the first dimension is the batch if the model has one.
        data: view of the binary form on the wire (for BYTES, each element follows its length); or a
            flat array from a transport that sends single elements (for BYTES, `bytes` objects).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | Array


@dataclass(slots=True, eq=False)
class RequestedOutput:
    """One requested output. A `classification` above 0 requests that many top classes instead."""

    name: str
    classification: int = 0


@dataclass(slots=True, eq=False)
class InferRequest:
    """A request for tensors.

    Attributes:
        model_name: name of the model.
        model_version: version; None for the version that the version policy prefers.
        inputs: the inputs.
        outputs: requested outputs in the client's order; empty for all outputs.
        id: ID that the response repeats; "" for none.
        parameters: parameters that have no field below.
        priority: 0 for the model's default; otherwise 1 is the highest priority.
        timeout_us: longest time in the queue in microseconds; 0 for the model's default.
        sequence_id: ID of the sequence; 0 or "" for none.
        sequence_start: True for the first request of a sequence.
        sequence_end: True for the last request of a sequence.
        trace: recorder of timestamps; None for requests that are not traced.
        times: collects the stage times of the engines for an ensemble or a trace; otherwise None.
        batch: batch size of the execution, set if `times` is a list.
        client: ID of the client for fair turns in the queue; "" if it is unknown.
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
    """One output of a response. The array is C-contiguous; BYTES elements are `bytes` objects."""

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return self.array.shape


@dataclass(slots=True, eq=False)
class InferResponse:
    """The response of a model; outputs are in the order of its configuration."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
