"""Images in the queue of a model: decoded, letterboxed, computed, and mapped back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from math import prod
from queue import Empty, SimpleQueue

import numpy as np

from fovea_engines.engine import Engine
from fovea_engines.session import Array, batched_outputs
from fovea_preprocess.errors import DeadlineExceeded, QueueFull
from fovea_preprocess.image import DecodedImage, ImageLimits, decode_image
from fovea_preprocess.jpeg import decoded_bytes
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.plural import counted
from fovea_preprocess.preprocessor import PlacedImage
from fovea_preprocess.spec import PreprocessSpec
from fovea_server.scheduling.batching import DynamicBatching
from fovea_server.scheduling.contract import Outputs
from fovea_server.scheduling.inline import QUICK_IMAGE_NS, InlineExecution
from fovea_server.scheduling.job import Job, JobKind
from fovea_server.statistics.model import Spans
from fovea_server.tensors.image_messages import ImageRequest, ImageResult, SentImage

# Largest file whose header is read on the event loop; a larger one is no small image.
_MOST_SCANNED = 16 << 10


class ImageKind(JobKind):
    """Images for one engine.

    On a CPU, an execution takes one image from its bytes to its answer. An engine on another device
    runs batches, and images are decoded ahead of it.

    Args:
        engine: stays open.
        limits: on the encoded and the decoded image.
        max_rows: most images of a batch, on another device.
        delay_us: longest wait of a batch that is not full, microseconds.
    """

    def __init__(
        self, engine: Engine, limits: ImageLimits, *, max_rows: int, delay_us: int
    ) -> None:
        session = engine.session
        rows = max_rows if session.offloads else 1
        super().__init__(
            DynamicBatching(rows, delay_us=delay_us if rows > 1 else 0),
            InlineExecution(steady=session.steady, quick_ns=QUICK_IMAGE_NS),
        )
        if session.offloads:
            # A batch at each execution, and one that waits for it.
            self.ahead = 2 * session.concurrency * rows
        self.engine = engine
        self.batched = batched_outputs(session)
        self.limits = limits
        self._rows: SimpleQueue[Array] = SimpleQueue()

    def take_row(self, spec: PreprocessSpec) -> Array:
        """Take a buffer for the row of one image, [1, ...]."""
        try:
            buffer = self._rows.get_nowait()
        except Empty:
            largest = self.engine.card.preprocess
            assert largest is not None, "the model takes images"
            buffer = np.empty(prod(largest.row_shape), largest.dtype)
        return buffer[: prod(spec.row_shape)].reshape(1, *spec.row_shape)

    def give_back(self, row: Array) -> None:
        """Return a buffer, for another image."""
        assert row.base is not None, "a row is a part of its buffer"
        self._rows.put(row.base)

    def gather(self, jobs: Sequence[Job]) -> Callable[[bool], Outputs]:
        """Join the rows of several images, unless the device letterboxes them."""
        images = [job for job in jobs if isinstance(job, ImageJob)]
        engine, device = images[0].engine, self.engine.images
        if device is not None:
            placed = [job.placed for job in images if job.placed is not None]
            return lambda alone: device.infer_images(placed)
        rows = [job.row for job in images if job.row is not None]
        batch = rows[0] if len(rows) == 1 else np.concatenate(rows)
        options = images[0].request.options
        return lambda alone: engine.infer(batch, options, alone=alone)


class ImageJob(Job):
    """One image of a request; `result` is there once it is answered."""

    borrows = False
    kind: ImageKind
    request: ImageRequest

    def __init__(
        self,
        kind: ImageKind,
        request: ImageRequest,
        data: SentImage,
        arrived_ns: int,
    ) -> None:
        self.place = request.place_of(data)
        super().__init__(kind, request, 1, arrived_ns, apart=self.place is not None)
        self.data = data
        self.engine = kind.engine
        self.placed: PlacedImage | None = None
        self.row: Array | None = None
        self.result: ImageResult
        self._map: LetterboxMap

    @property
    def nbytes(self) -> int:
        """Bytes of its pixels, as its header says; more than any limit where that is not cheap."""
        if isinstance(self.data, DecodedImage):
            return self.data.pixels.nbytes
        return sys.maxsize if len(self.data) > _MOST_SCANNED else decoded_bytes(self.data)

    @property
    def held(self) -> int:
        """Bytes that a prepared image holds: its row, and pixels that are still needed."""
        placed = None if self.placed is None else self.placed.pixels
        arrays = self.row, self.result.pixels, placed
        return sum(array.nbytes for array in arrays if array is not None)

    def fits(self, other: Job) -> bool:
        """Return True for rows of the same size."""
        assert isinstance(other, ImageJob), "jobs of one kind"
        return self.engine is other.engine

    def prepare(self) -> None:
        """Decode and letterbox the image; raises as `decode_image`."""
        began = time.monotonic()
        sent = self.data
        image = sent if isinstance(sent, DecodedImage) else decode_image(sent, self.kind.limits)
        self.result = ImageResult(image.width, image.height, image.orientation)
        if self.request.keep_pixels:
            self.result.pixels = np.ascontiguousarray(image.pixels)
        decoded = time.monotonic()
        engine = self.engine = self.kind.engine.for_image(image.pixels)
        if engine.images is not None:
            self.placed, self._map = engine.images.place(image.pixels)
        else:
            assert engine.preprocessor is not None, "the model takes images"
            self.row = self.kind.take_row(engine.preprocessor.spec)
            self._map = engine.preprocessor(image.pixels, self.row[0])
        timing = self.result.timing
        timing.decode, timing.letterbox = decoded - began, time.monotonic() - decoded

    def finish(self, outputs: Outputs, row: int, rows: int) -> None:
        """Decode the head, and write the answer."""
        began, result, engine = time.monotonic(), self.result, self.engine
        if self.row is not None:
            self.kind.give_back(self.row)
        result.batch = rows
        # A job that waits for others of its request must not hold pixels.
        self.data, self.placed, self.row = b"", None, None
        if engine.head is None:
            batched = self.kind.batched
            result.tensors = {
                name: (array[row] if name in batched else array).copy()
                for name, array in outputs.items()
            }
        else:
            result.found = engine.decode(outputs, row, self.request.options).to_source(self._map)
        if self.request.encode is not None:
            result.encoded = self.request.encode(result)
        result.timing.postprocess = time.monotonic() - began

    def spans(self, began_ns: int, batch: Spans) -> Spans:
        """Return its times by stage: decode and letterbox are input, the head is output."""
        timing = self.result.timing
        timing.infer = batch.compute_infer / 1e9
        prepared_ns = int(1e9 * (timing.decode + timing.letterbox))
        queue_ns = began_ns - self.arrived_ns
        if self.ahead:
            queue_ns = max(0, queue_ns - prepared_ns)
        timing.queue = queue_ns / 1e9
        return Spans(queue_ns, prepared_ns, batch.compute_infer, int(1e9 * timing.postprocess))

    def queue_full(self, waiting: int, retry_after_s: float) -> QueueFull:
        """Make the error, with the option that sets the limit."""
        return QueueFull(
            f"{counted(waiting, 'request')} accepted and not yet answered, and no room for "
            f"{counted(len(self.request.images), 'image')} more (--max-queue, or max_queue_size "
            "in config.pbtxt); send again after the time in Retry-After",
            retry_after_s=retry_after_s,
        )

    def expired(self) -> DeadlineExceeded:
        """Make the error, with the setting that set the limit."""
        return DeadlineExceeded(
            "the image waited longer than the queue policy in config.pbtxt allows; send it again "
            "later, or send less"
        )
