"""Requests for tensors and for images, and their answers, independent of the transport."""

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
"""An image of a request: encoded, or pixels that a carrier has as they are."""

Parameter = bool | int | float | str


class DecodingPlace(Protocol):
    """The place of a large image among those that are decoded."""

    def end_decoding(self, left: int) -> None:
        """End its turn: `left` of the bytes that decoding took are still held."""
        ...


Place = AbstractAsyncContextManager[DecodingPlace]
"""Entered when an image may be decoded, and left when it is answered."""


@dataclass(slots=True, eq=False)
class ImageRequest:
    """A request to find objects or classes on images.

    Attributes:
        images: an answer each.
        options: with class ids in place of names.
        keep_pixels: return the upright images with the answers.
        encode: writes an answer in the form of the transport, in the thread that computed it.
        id, priority, timeout_us, trace, client: as in `InferRequest`.
        place_of: makes the place of an image that is large to decode; None for any other.
        cut: answers its images part by part; None where each is run as it is.
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
    """The answer for one image.

    Attributes:
        width, height: of the upright image, pixels.
        orientation: EXIF orientation found in the file, 1 to 8.
        found: in pixels of the upright image; None where the head is not recognised.
        tensors: the raw output rows, by name, where the head is not recognised; else None.
        pixels: the upright image, uint8 [h, w, 3] RGB, if the request keeps it.
        batch: rows of the execution that computed it; 0 for none, or several.
        times: of the slowest of its tiles, where it was cut into some; of rows of tiles that were
            run one after the other, together.
        stages: nanoseconds of each stage of a pipeline, by its name.
        encoded: the result of the request's `encode`, if it has that.
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
"""Has an engine answer images in place of those of a request, such as the tiles of one."""
Cut = Callable[[ImageRequest, RunParts], Awaitable[list[ImageResult | FoveaError]]]
"""Answers the images of a request by their parts, which the function that it is given runs."""


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
