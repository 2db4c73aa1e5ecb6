"""Units of work in the queue of a model, and the two sources of work: tensors and images."""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from queue import Empty, SimpleQueue

import numpy as np

from fovea_engines.engine import Engine
from fovea_engines.heads.custom import FileHead
from fovea_engines.session import Array, Session, batched_outputs
from fovea_preprocess.errors import (
    DeadlineExceeded,
    FoveaError,
    InferenceFailed,
    InvalidOption,
    InvalidRequest,
    QueueFull,
)
from fovea_preprocess.image import DecodedImage, ImageLimits, decode_image
from fovea_preprocess.jpeg import decoded_bytes
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage
from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import counted
from fovea_server.observability.model_statistics import NO_TIMES, StageTimes
from fovea_server.scheduling.batching import QUICK_IMAGE_NS, DynamicBatching, InlineExecution
from fovea_server.scheduling.model_io import Outputs
from fovea_server.tensors.check import CheckedRequest, request_prefix
from fovea_server.tensors.messages import ImageRequest, ImageResult, InferRequest, Place, SentImage

# Size in bytes of the largest file whose header is parsed on the event loop. Images in larger files
# are never small enough to run on the event loop.
_MAX_SCANNED = 16 << 10


class Job:
    """A unit of work for the engine: an image, or the rows of a tensor request.

    A job waits in the queue. If its source prepares jobs before their execution, a thread claims
    the job and prepares it while it is in the queue. An execution takes prepared jobs out of the
    queue and computes them. A row is one entry of the batch dimension.

    Attributes:
        rows: number of rows that the job adds to a batch.
        turn: position in the priority level: the number of rows that the same client has queued
            before this job.
        arrived_ns: `time.monotonic_ns()` at arrival.
        place: reserved memory for decoding a large image, which a separate thread prepares; None
            for all other jobs.
        future: done when the job is complete; None for a job that the event loop runs immediately.
        expiry: timer of the queue timeout; None if there is no timeout.
        claimed: True after a thread has begun to prepare the job.
        prepared: True if an execution may take the job.
        error: the reason why the job failed; None if it has not.
        times: durations of the execution's stages, in nanoseconds.
        answered: True when the job is complete, with a result or an error.
        given_up: future on which a cancelled request waits for the end of the execution; None
            otherwise.
        feeds: for tensors, an array for each input.
        outputs: for tensors, the rows of the job in each output, after the execution.
        batch: number of rows in the batch that contained the job.
        image: for images, the image and its intermediate results.
    """

    __slots__ = (
        *("answered", "arrived_ns", "batch", "claimed", "error", "expiry", "feeds", "future"),
        *("given_up", "image", "outputs", "place", "prepared", "request", "rows", "source"),
        *("times", "turn"),
    )

    def __init__(
        self,
        source: Source,
        request: InferRequest | ImageRequest,
        rows: int,
        arrived_ns: int,
        place: Place | None = None,
    ) -> None:
        self.source = source
        self.request = request
        self.rows = rows
        self.turn = 0
        self.arrived_ns = arrived_ns
        self.place = place
        self.future: asyncio.Future[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.claimed = not source.ahead
        self.prepared = not self.ahead
        self.error: FoveaError | None = None
        self.times = NO_TIMES
        self.answered = False
        self.given_up: asyncio.Future[None] | None = None
        self.feeds: dict[str, Array] = {}
        self.outputs: Outputs = {}
        self.batch = 0
        self.image: ImageWork

    @property
    def ahead(self) -> bool:
        """True if the job is prepared before an execution takes it from the queue."""
        return self.place is not None or self.source.ahead > 0

    @property
    def is_wanted(self) -> bool:
        """True while a caller waits for the job and the job has not failed."""
        return self.error is None and (self.future is None or not self.future.done())

    @property
    def is_part(self) -> bool:
        """True for a part of an image, such as a tile; it counts as an inference, not a request."""
        return isinstance(self.request, ImageRequest) and self.request.cut is not None

    def too_many_error(self, count: int, limit: int) -> InvalidRequest:
        """Make the error for a request, or an image in parts, that is larger than the queue."""
        text = f"the limit is {limit} (--max-queue, or max_queue_size in config.pbtxt)"
        request = self.request
        if not isinstance(request, ImageRequest) or request.cut is None:
            return InvalidRequest(
                f"the request has {counted(count, 'image')}, but {text}: split the request"
            )
        if request.options.tile is None:
            return InvalidRequest(
                f"a row of the image has {counted(count, 'tile')}, and {text}: send a smaller image"
            )
        return InvalidOption(
            f"tile={request.options.tile} cuts the image into {counted(count, 'tile')}, and "
            f"{text}: request larger tiles"
        )

    def queue_full_error(self, waiting: int, retry_after_s: float) -> QueueFull:
        """Make the error for a request that cannot enter the queue, which has `waiting` jobs."""
        if isinstance(self.request, InferRequest):
            text = f"{request_prefix(self.request)}Exceeds maximum queue size"
        else:
            text = (
                f"the queue is full: {counted(waiting, 'request')} in flight, and no room for "
                f"{counted(len(self.request.images), 'image')} more (--max-queue, or "
                "max_queue_size in config.pbtxt); send the request again after the time in "
                "Retry-After"
            )
        return QueueFull(text, retry_after_s=retry_after_s)

    def expired_error(self) -> DeadlineExceeded:
        """Make the error for a request that has waited longer than its queue policy allows."""
        if isinstance(self.request, InferRequest):
            return DeadlineExceeded("Request timeout expired")
        return DeadlineExceeded(
            "the image waited longer than the queue policy in config.pbtxt allows; send it again "
            "later, or send less"
        )


class Source(ABC):
    """Makes the rows of a batch from tensors or images, and results from the outputs of the engine.

    Args:
        batching: decides which jobs form a batch, and when.
        inline: decides whether a batch may run on the event loop.

    Attributes:
        ahead: largest number of jobs that are prepared before an execution takes them; 0 if the
            execution prepares its jobs itself.
        borrows: True if the arrays of jobs are memory of the client. Then a cancelled request waits
            until the engine has read the arrays.
    """

    ahead = 0
    borrows = False

    def __init__(self, batching: DynamicBatching, inline: InlineExecution) -> None:
        self.batching = batching
        self.inline = inline

    @abstractmethod
    def nbytes(self, job: Job) -> int:
        """Return the size of the job's inputs or pixels, in bytes."""

    @abstractmethod
    def fits(self, job: Job, other: Job) -> bool:
        """Return whether two jobs can be in the same batch."""

    @abstractmethod
    def prepare(self, job: Job) -> None:
        """Make the rows of a job; raise a FoveaError if the request is invalid."""

    @abstractmethod
    def gather(self, jobs: Sequence[Job]) -> Callable[[bool], Outputs]:
        """Join prepared jobs into a batch, and return a function that runs the batch.

        The argument of the function is the argument `alone` of `Session.infer`.
        """

    @abstractmethod
    def finish(self, job: Job, outputs: Outputs, row: int) -> None:
        """Store the job's part of the batch's outputs; the part begins at index `row`."""

    @abstractmethod
    def times(self, job: Job, began_ns: int, batch: StageTimes) -> StageTimes:
        """Return the stage times of a job.

        Args:
            job: a job of the batch, after the call of `finish`.
            began_ns: value of `time.monotonic_ns()` when the execution of the batch began.
            batch: stage times of the batch, in nanoseconds.
        """


class TensorSource(Source):
    """Makes jobs from tensor requests that fit the model of one session."""

    borrows = True

    def __init__(self, session: Session, batching: DynamicBatching) -> None:
        super().__init__(batching, InlineExecution(steady=session.steady))
        self._session = session

    def job(self, request: InferRequest, checked: CheckedRequest, arrived_ns: int) -> Job:
        """Make the job for a checked request."""
        job = Job(self, request, checked.rows, arrived_ns)
        job.feeds = checked.feeds
        return job

    def nbytes(self, job: Job) -> int:
        """Return the size of the inputs, in bytes."""
        size = 0
        for array in job.feeds.values():
            size += array.nbytes
        return size

    def fits(self, job: Job, other: Job) -> bool:
        """Return whether two jobs have equal input names and row shapes."""
        mine, others = job.feeds, other.feeds
        return mine.keys() == others.keys() and all(
            array.shape[1:] == others[name].shape[1:] for name, array in mine.items()
        )

    def prepare(self, job: Job) -> None:
        """Do nothing, because a tensor request contains its rows already."""

    def gather(self, jobs: Sequence[Job]) -> Callable[[bool], Outputs]:
        """Join the rows of several jobs into a batch; the rows of a single job are not copied."""
        feeds = jobs[0].feeds
        if len(jobs) > 1:
            feeds = {name: np.concatenate([job.feeds[name] for job in jobs]) for name in feeds}

        def infer(alone: bool) -> Outputs:
            outputs = self._session.infer(feeds, alone=alone)
            if len(jobs) > 1:
                _check_rows(outputs, sum(job.rows for job in jobs))
            return outputs

        return infer

    def finish(self, job: Job, outputs: Outputs, row: int) -> None:
        """Store the rows of the job in each output."""
        job.outputs = outputs
        if job.batch > job.rows:
            job.outputs = {name: array[row : row + job.rows] for name, array in outputs.items()}

    def times(self, job: Job, began_ns: int, batch: StageTimes) -> StageTimes:
        """Return the stage times of the batch, with the job's wait as queue time."""
        return batch._replace(queue=began_ns - job.arrived_ns)


def _check_rows(outputs: Outputs, rows: int) -> None:
    """Raise InferenceFailed if the number of output rows differs from the number of input rows."""
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise InferenceFailed(
                f"output '{name}' has shape {list(array.shape)} for a batch of {rows} rows, so "
                "requests cannot share a batch: set max_batch_size to 0 in config.pbtxt"
            )


class ImageWork:
    """An image of a request, with its intermediate results.

    Attributes:
        sent: encoded bytes, or pixels, as the client sent them.
        engine: engine for the input size to which the image is letterboxed.
        row: the letterboxed image, an array [1, ...]; None if the device letterboxes images.
        on_device: the image on a device that letterboxes images; None on other devices.
        back: maps pixel coordinates of the model's input to coordinates of the image.
        decode_ns, prepare_ns, output_ns: durations, in nanoseconds, of decoding the image, making
            its row, and making its result.
        result: the result of the image; complete when the job is complete.
    """

    __slots__ = (
        *("back", "decode_ns", "engine", "on_device", "output_ns", "prepare_ns", "result", "row"),
        "sent",
    )

    def __init__(self, sent: SentImage, engine: Engine) -> None:
        self.sent = sent
        self.engine = engine
        self.row: Array | None = None
        self.on_device: PlacedImage | None = None
        self.back: LetterboxMap
        self.decode_ns: int
        self.prepare_ns: int
        self.output_ns: int
        self.result: ImageResult

    @property
    def held(self) -> int:
        """Memory of a prepared image in bytes: its row, and the pixels that are still needed."""
        on_device = None if self.on_device is None else self.on_device.pixels
        arrays = self.row, self.result.pixels, on_device
        return sum(array.nbytes for array in arrays if array is not None)


class ImageSource(Source):
    """Makes jobs from images: decodes and letterboxes them, and maps results to image coordinates.

    On a CPU, one execution decodes a single image, computes it, and makes its result. An engine on
    another device runs batches, and other threads decode the images before that.

    Args:
        engine: the engine, which stays open.
        limits: limits on the size of the encoded and of the decoded image.
        max_rows: largest batch size on a device other than the CPU; a CPU runs single images.
        delay_us: longest time, in microseconds, for which a batch that is not full waits for more
            images.
    """

    def __init__(
        self, engine: Engine, limits: ImageLimits, *, max_rows: int, delay_us: int
    ) -> None:
        session = engine.session
        rows = max_rows if session.offloads else 1
        # The code in a head file of the user may take any time, or never end.
        steady = session.steady and not isinstance(engine.head, FileHead)
        super().__init__(
            DynamicBatching(rows, delay_us=delay_us if rows > 1 else 0),
            InlineExecution(steady=steady, quick_ns=QUICK_IMAGE_NS),
        )
        if session.offloads:
            # Prepared jobs for one running batch and one waiting batch in each parallel call.
            self.ahead = 2 * session.concurrency * rows
        self.engine = engine
        self.limits = limits
        self._batched = batched_outputs(session)
        self._rows: SimpleQueue[Array] = SimpleQueue()

    def job(self, request: ImageRequest, sent: SentImage, arrived_ns: int) -> Job:
        """Make the job for one image of a request."""
        job = Job(self, request, 1, arrived_ns, request.place_of(sent))
        job.image = ImageWork(sent, self.engine)
        return job

    def nbytes(self, job: Job) -> int:
        """Return the size of the decoded pixels, in bytes.

        Return `sys.maxsize` for files whose header takes too long to parse on the event loop.
        """
        sent = job.image.sent
        if isinstance(sent, DecodedImage):
            return sent.pixels.nbytes
        return sys.maxsize if len(sent) > _MAX_SCANNED else decoded_bytes(sent)

    def fits(self, job: Job, other: Job) -> bool:
        """Return whether both images are letterboxed to the same input size."""
        return job.image.engine is other.image.engine

    def prepare(self, job: Job) -> None:
        """Decode and letterbox the image of a job.

        Raises:
            FoveaError: one of the errors of `decode_image`.
        """
        began, work = time.monotonic_ns(), job.image
        sent = work.sent
        image = sent if isinstance(sent, DecodedImage) else decode_image(sent, self.limits)
        result = work.result = ImageResult(image.width, image.height, image.orientation)
        assert isinstance(job.request, ImageRequest), "it is a job of this source"
        if job.request.keep_pixels:
            result.pixels = np.ascontiguousarray(image.pixels)
        decoded = time.monotonic_ns()
        engine = work.engine = self.engine.for_image(image.pixels)
        if engine.images is not None:
            work.on_device, work.back = engine.images.place(image.pixels)
        else:
            assert engine.preprocessor is not None, "the model takes images"
            work.row = self._take_row(engine.preprocessor.spec)
            work.back = engine.preprocessor(image.pixels, work.row[0])
        work.decode_ns, work.prepare_ns = decoded - began, time.monotonic_ns() - decoded

    def _take_row(self, spec: PreprocessSpec) -> Array:
        """Take a buffer for the row of one image from the pool, as an array [1, ...]."""
        try:
            buffer = self._rows.get_nowait()
        except Empty:
            largest = self.engine.card.preprocess
            assert largest is not None, "the model takes images"
            buffer = np.empty(prod(largest.row_shape), largest.dtype)
        return buffer[: prod(spec.row_shape)].reshape(1, *spec.row_shape)

    def _give_back(self, row: Array) -> None:
        """Return a buffer to the pool."""
        assert row.base is not None, "a row is a part of its buffer"
        self._rows.put(row.base)

    def gather(self, jobs: Sequence[Job]) -> Callable[[bool], Outputs]:
        """Join the rows of several images; if the device letterboxes images, pass it the images."""
        images, device = [job.image for job in jobs], self.engine.images
        if device is not None:
            on_device = [image.on_device for image in images if image.on_device is not None]
            return lambda alone: device.infer_images(on_device)
        rows = [image.row for image in images if image.row is not None]
        batch = rows[0] if len(rows) == 1 else np.concatenate(rows)
        engine, request = images[0].engine, jobs[0].request
        assert isinstance(request, ImageRequest), "they are jobs of this source"
        return lambda alone: engine.infer(batch, request.options, alone=alone)

    def finish(self, job: Job, outputs: Outputs, row: int) -> None:
        """Decode the outputs with the head, map the result to image coordinates, and encode it."""
        began, work, request = time.monotonic_ns(), job.image, job.request
        assert isinstance(request, ImageRequest), "it is a job of this source"
        result, engine = work.result, work.engine
        if work.row is not None:
            self._give_back(work.row)
        result.batch = job.batch
        # A finished job may wait for other jobs of its request. It must not keep pixels in memory
        # while it waits.
        work.sent, work.on_device, work.row = b"", None, None
        if engine.head is None:
            result.tensors = {
                name: (array[row] if name in self._batched else array).copy()
                for name, array in outputs.items()
            }
        else:
            result.found = engine.decode(outputs, row, request.options).to_source(work.back)
        if request.encode is not None:
            result.encoded = request.encode(result)
        work.output_ns = time.monotonic_ns() - began

    def times(self, job: Job, began_ns: int, batch: StageTimes) -> StageTimes:
        """Return the stage times of the image, with the time of the whole batch in the engine."""
        work, queue_ns = job.image, began_ns - job.arrived_ns
        if job.ahead:
            queue_ns = max(0, queue_ns - work.decode_ns - work.prepare_ns)
        own = work.decode_ns, work.prepare_ns, batch.infer, work.output_ns
        times = work.result.times = StageTimes(queue_ns, *own)
        return times
