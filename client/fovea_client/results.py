"""Defines the server's answers as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Box:
    """Corners of an upright box, in pixels of the upright original image."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Detection:
    """One detected object; the score is 0 to 1."""

    box: Box
    score: float
    class_id: int
    class_name: str


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One raw output of a model whose head the server does not recognise, as the model has it."""

    name: str
    data: NDArray[Any]


@dataclass(frozen=True, slots=True)
class ImageResult:
    """Detections of one image.

    Attributes:
        width: of the upright image, pixels.
        height: of the upright image, pixels.
        orientation: EXIF orientation that was applied, 1 to 8.
        detections: best first; empty when nothing was found, or for a model with `tensors`.
        tensors: raw outputs, for a model whose head is not recognised.
    """

    width: int
    height: int
    orientation: int
    detections: tuple[Detection, ...]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageError:
    """Error of one image among several: a stable word for programs, and advice for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of the steps of one request in the server, milliseconds."""

    decode: float
    letterbox: float
    queue: float
    infer: float
    postprocess: float
    total: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to one request; `images` are in the order in which they were sent."""

    model: str
    version: str
    task: str
    images: tuple[ImageResult | ImageError, ...]
    timing_ms: Timing

    @property
    def image(self) -> ImageResult:
        """Return the result of a request with one image; `ValueError` if it had several."""
        match self.images:
            case (ImageResult() as only,):
                return only
        raise ValueError(f"the answer is for {len(self.images)} images: go through `images`")

    @property
    def detections(self) -> tuple[Detection, ...]:
        """Return the detections of a request with one image; raises as `image` does."""
        return self.image.detections
