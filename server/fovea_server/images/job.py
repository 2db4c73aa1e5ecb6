"""An image on its way through the stages, and its result."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.errors import DeadlineExceeded
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage


@dataclass(slots=True)
class Timing:
    """Seconds spent in each stage."""

    decode: float = 0.0
    letterbox: float = 0.0
    queue: float = 0.0
    infer: float = 0.0
    postprocess: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ImageResult:
    """The result for one image.

    Attributes:
        width, height: of the upright image, pixels.
        orientation: EXIF orientation found in the file, 1 to 8.
        detections: boxes in pixels of the upright image; None where the head is not recognised.
        tensors: the raw output rows, by name, where the head is not recognised; else None.
        pixels: the upright image, uint8 [h, w, 3] RGB, if the job keeps it.
    """

    width: int
    height: int
    orientation: int
    detections: Detections | None
    tensors: dict[str, Array] | None
    timing: Timing
    pixels: NDArray[np.uint8] | None


@dataclass(slots=True, eq=False)
class ImageJob:
    """An image, its options, and the future that its caller waits for.

    The future is made before the job is queued, so an answer can never come too early. A
    cancelled future means that no caller waits any more: the job is dropped at the next stage.

    Attributes:
        deadline: `time.monotonic()` after which work on it stops; None for never.
        image: decoded image, for an engine whose device letterboxes.
        accepted_at: `time.monotonic()` of its construction.
        waiting_since: that when the job last began to wait for a stage.
        computing: the job has reached the engine.
    """

    data: bytes
    options: PredictOptions
    deadline: float | None = None
    keep_pixels: bool = False
    future: Future[ImageResult] = field(default_factory=Future)
    timing: Timing = field(default_factory=Timing)
    accepted_at: float = field(default_factory=time.monotonic)
    waiting_since: float = field(default_factory=time.monotonic)
    computing: bool = False
    width: int = 0
    height: int = 0
    orientation: int = 1
    pixels: NDArray[np.uint8] | None = None
    map: LetterboxMap | None = None
    image: PlacedImage | None = None

    def wanted(self) -> bool:
        """Return True if a caller still waits; fail the job if its deadline has passed."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.fail(DeadlineExceeded("the deadline passed while the image was waiting"))
        return not self.future.done()

    def finish(self, result: ImageResult) -> None:
        """Set the result, unless the caller has cancelled."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Set an error, unless the caller has cancelled."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def begin_wait(self) -> None:
        """Start the queue clock."""
        self.waiting_since = time.monotonic()

    def end_wait(self) -> None:
        """Stop the queue clock."""
        self.timing.queue += time.monotonic() - self.waiting_since
