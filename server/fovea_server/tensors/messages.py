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
"""An image in a request: an encoded file, or decoded pixels."""

Parameter = bool | int | float | str


class DecodingPlace(Protocol):
    """Permission to decode a large image. Large images are decoded one after the other."""

    def end_decoding(self, left: int) -> None:
        """End the decoding.

        `left` is the number of bytes that stay in use until the response is sent.
        """
        ...


Place = AbstractAsyncContextManager[DecodingPlace]
"""Context manager that waits until a large image may be decoded. On exit it releases the image's
bytes.
"""


@dataclass(slots=True, eq=False)
class ImageRequest:
    """A request to run a model on images.

    Attributes:
        images: encoded or decoded images; each image gets its own result.
        options: prediction options, with class IDs instead of class names.
        keep_pixels: True to return the pixels of the upright images with the results.
        encode: function that encodes a result for the transport. It runs in the thread that
            computed the result.
        id: request ID; see `InferRequest`.
        priority: priority in the queue; see `InferRequest`.
        timeout_us: longest time in the queue in microseconds; see `InferRequest`.
        trace: recorder of timestamps; see `InferRequest`.
        place_of: function that returns a `Place` for an image whose pixels are large, and None for
            other images.
        client: ID of the client; see `InferRequest`.
        cut: function that runs the model on parts of the images, such as tiles; None to run the
            model on whole images.
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
        found: result, with coordinates in pixels of the upright image; None if the head is unknown.
        tensors: if the head is unknown, raw output values of the image by output name; otherwise
            None.
        pixels: upright image, uint8 [height, width, 3] RGB, if the request keeps it.
        batch: batch size of the model's execution; 0 if the model did not run, or ran several
            times.
        times: durations of the stages. For tiles that ran together, the slowest tile counts.
            Durations of tile rows that ran one after the other are summed.
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
"""Function that runs the model on parts of a request's images, such as tiles, instead of the
images.
"""
Cut = Callable[[ImageRequest, RunParts], Awaitable[list[ImageResult | FoveaError]]]
"""Function that returns the results of a request's images. It calls `RunParts` to run the model on
parts of the images.
"""


@dataclass(slots=True, eq=False)
class InputTensor:
    """One input of a request as the client sent it.

    Attributes:
        name: name of the input.
        datatype: the protocol's name of the datatype.
        shape: sizes of the dimensions. If the model has a batch dimension, it is the first.
        data: view of the binary form on the wire, in which the length of each BYTES element
            precedes the element. From a transport that sends single elements, a 1-D array; BYTES
            elements are `bytes` objects.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | Array


@dataclass(slots=True, eq=False)
class RequestedOutput:
    """One requested output.

    If `classification` is above 0, the response has this number of top classes instead.
    """

    name: str
    classification: int = 0


@dataclass(slots=True, eq=False)
class InferRequest:
    """A request for tensors.

    Attributes:
        model_name: name of the model.
        model_version: version of the model; None for the version that the version policy prefers.
        inputs: input tensors.
        outputs: requested outputs in the client's order; an empty list requests all outputs.
        id: ID that the response repeats; "" for none.
        parameters: other parameters of the request, which have no field below.
        priority: 0 for the model's default; otherwise 1 is the highest priority.
        timeout_us: longest time in the queue in microseconds; 0 for the model's default.
        sequence_id: ID of the sequence; 0 or "" for none.
        sequence_start: True for the first request of a sequence.
        sequence_end: True for the last request of a sequence.
        trace: recorder of timestamps; None for requests that are not traced.
        times: list to which engines append their stage times, for an ensemble or a trace; otherwise
            None.
        batch: batch size of the model's execution. It is set if `times` is a list.
        client: ID of the client; "" if it is unknown. The queue alternates between clients.
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
    """One output of a response.

    The array is C-contiguous; elements of BYTES are `bytes` objects.
    """

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return self.array.shape


@dataclass(slots=True, eq=False)
class InferResponse:
    """The response of a model. The outputs have the order of the model's configuration."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
