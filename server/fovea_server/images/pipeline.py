"""Runs images through three stages: decode and letterbox; infer; decode head, NMS and map back.

The stages run in separate threads, joined by bounded queues, so that they overlap. Each
owner thread runs one inference at a time; there are as many as the session can use side by side.
If a stage dies, all waiting jobs fail and the model is no longer ready.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fovea_engines.backends.cores import usable_cores
from fovea_engines.engine import Engine
from fovea_engines.session import Array
from fovea_preprocess.errors import (
    DeviceLost,
    FoveaError,
    InferenceFailed,
    ModelNotReady,
    QueueFull,
    ShuttingDown,
)
from fovea_preprocess.image import ImageLimits, decode_image
from fovea_server.images.batcher import Batch, Batcher
from fovea_server.images.counts import Admission, ImageCounts
from fovea_server.images.job import ImageJob, ImageResult
from fovea_server.statistics.model import ModelStatistics

log = logging.getLogger(__name__)


class _Computed(NamedTuple):
    jobs: list[ImageJob]
    outputs: dict[str, Array]
    infer_s: float


class Pipeline:
    """Runs image jobs, and sets their futures.

    Args:
        engine: loaded; closed with the pipeline.
        limits: on the encoded and the decoded image.
        max_queue: most images accepted and not yet answered.
        max_queue_delay_s: longest wait of a batch that is not full.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limits: ImageLimits,
        max_queue: int,
        max_queue_delay_s: float,
        statistics: ModelStatistics,
    ) -> None:
        self.engine = engine
        self.admission = Admission(max_queue)
        self.failure: str | None = None
        self.counts = ImageCounts(statistics)
        self._limits = limits
        self._closing = False
        # A job that has passed it is answered, even if a stage dies.
        self._gate = threading.Lock()
        self._live: set[ImageJob] = set()
        self._inbox: queue.SimpleQueue[ImageJob | None] = queue.SimpleQueue()
        owners = engine.session.concurrency
        self._batcher = Batcher(
            # Images that a device letterboxes go to it whole, and need no rows.
            engine.session.inputs if engine.preprocessor and not engine.images else (),
            max_batch=engine.rows,
            # One at each owner and one being filled for it: with fewer, owners that finish
            # together would wait for pixels.
            batches=2 * owners,
            max_delay_s=max_queue_delay_s,
        )
        self._computed: queue.Queue[_Computed | None] = queue.Queue(maxsize=2 * owners)
        # Keeping a GPU busy takes more decoding threads than it has owners.
        readers = owners if engine.images is None else usable_cores()
        self._readers = [self._thread("decode", self._decode_stage) for _ in range(readers)]
        self._owners = [self._thread("infer", self._infer_stage) for _ in range(owners)]
        self._finisher = self._thread("postprocess", self._postprocess_stage)
        for thread in (*self._readers, *self._owners, self._finisher):
            thread.start()

    def submit(self, jobs: Sequence[ImageJob]) -> None:
        """Accept all jobs or none; their futures will be answered.

        Raises:
            QueueFull: there are too many.
            ModelNotReady: a stage has died.
            ShuttingDown: the pipeline is being closed.
        """
        with self._gate:
            if self.failure:
                raise ModelNotReady(self.failure)
            if self._closing:
                raise ShuttingDown("the model is being unloaded; send again later")
            try:
                self.admission.enter(len(jobs))
            except QueueFull:
                self.counts.refused(len(jobs))
                raise
            self._live.update(jobs)
        for job in jobs:
            job.future.add_done_callback(partial(self._leave, job))
            self._inbox.put(job)

    @property
    def pending(self) -> int:
        """Number of images accepted and not yet given to the engine."""
        return sum(not job.computing for job in list(self._live))

    def close(self, timeout_s: float) -> None:
        """Finish accepted jobs, then stop the stages and close the engine."""
        with self._gate:
            self._closing = True
        until = time.monotonic() + timeout_s
        while self.admission.inside and not self.failure and time.monotonic() < until:
            time.sleep(0.01)
        for job in list(self._live):
            job.fail(ShuttingDown("the server stopped before this image was done"))
        for _ in self._readers:
            self._inbox.put(None)
        self._batcher.close()
        for thread in (*self._readers, *self._owners):
            thread.join()
        with suppress(queue.Empty):
            while self.failure:
                self._computed.get_nowait()
        self._computed.put(None)
        self._finisher.join()
        self.engine.close()

    def _leave(self, job: ImageJob, future: Future[ImageResult]) -> None:
        # A cancelled job may stay in the inbox for a while: it must not hold its bytes.
        job.data = b""
        self._live.discard(job)
        self.admission.leave(served=not future.cancelled() and future.exception() is None)
        self.counts.answered(job, future)

    def _thread(self, name: str, stage: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            done = False
            try:
                stage()
                done = True
            finally:
                if not done:
                    self._fail(f"the {name} stage has died; the server's log says why; restart it")

        return threading.Thread(target=run, name=f"{self.engine.card.name}-{name}", daemon=True)

    def _fail(self, reason: str) -> None:
        with self._gate:
            self.failure = reason
        log.critical("model %s: %s", self.engine.card.name, self.failure)
        for job in list(self._live):
            job.fail(ModelNotReady(self.failure))

    def _decode_stage(self) -> None:
        while (job := self._inbox.get()) is not None:
            job.end_wait()
            if job.wanted():
                with self._failing_only(job):
                    self._decode(job)

    def _decode(self, job: ImageJob) -> None:
        preprocessor = self.engine.preprocessor
        assert preprocessor is not None, "submit() takes no images without one"
        started = time.monotonic()
        image = decode_image(job.data, self._limits)
        job.width, job.height, job.orientation = image.width, image.height, image.orientation
        if job.keep_pixels:
            job.pixels = image.pixels
        job.timing.decode = time.monotonic() - started
        job.begin_wait()
        batch, row = self._batcher.lease()
        job.end_wait()
        started = time.monotonic()
        written = False
        try:
            if self.engine.images is not None:
                job.image, job.map = self.engine.images.place(image.pixels)
            else:
                buffer = batch.buffers[self.engine.session.inputs[0].name]
                job.map = preprocessor(image.pixels, buffer[row])
            written = True
        finally:
            job.timing.letterbox = time.monotonic() - started
            job.begin_wait()
            self._batcher.commit(batch, row, job if written else None)

    def _infer_stage(self) -> None:
        while (batch := self._batcher.take()) is not None:
            jobs = [*batch.jobs.values()]
            for job in jobs:
                job.end_wait()
            with self._failing_only(*jobs):
                self._infer(batch, jobs)
            self._batcher.release(batch)

    def _infer(self, batch: Batch, jobs: list[ImageJob]) -> None:
        started = time.monotonic()
        for job in jobs:
            job.computing = True
        outputs = self._outputs(batch, jobs)
        infer_s = time.monotonic() - started
        for job in jobs:
            job.timing.infer = infer_s
            job.begin_wait()
        while not self.failure:
            # With a timeout, so that a dead postprocess stage cannot block this one for ever.
            with suppress(queue.Full):
                self._computed.put(_Computed(jobs, outputs, infer_s), timeout=1)
                return

    def _outputs(self, batch: Batch, jobs: list[ImageJob]) -> dict[str, Array]:
        if self.engine.images is None:
            alone = self.admission.inside <= len(jobs)
            return self.engine.session.infer(batch.feeds(), alone=alone)
        images = [job.image for job in jobs if job.image is not None]
        for job in jobs:
            # Jobs that wait for postprocessing must not hold their pixels.
            job.image = None
        return self.engine.images.infer_images(images)

    def _postprocess_stage(self) -> None:
        while (computed := self._computed.get()) is not None:
            started = time.monotonic()
            for row, job in enumerate(computed.jobs):
                if job.wanted():
                    job.end_wait()
                    with self._failing_only(job):
                        self._postprocess(job, row, computed.outputs)
            self.counts.executed(computed.jobs, computed.infer_s, time.monotonic() - started)

    def _postprocess(self, job: ImageJob, row: int, outputs: dict[str, Array]) -> None:
        started = time.monotonic()
        detections, tensors = None, None
        if self.engine.head is None:
            tensors = {name: array[row].copy() for name, array in outputs.items()}
        else:
            assert job.map is not None, "every committed job has been letterboxed"
            found = self.engine.head.decode(outputs, row, job.options)
            detections = replace(found, boxes=job.map.boxes_to_source(found.boxes))
        job.timing.postprocess = time.monotonic() - started
        size = job.width, job.height, job.orientation
        job.finish(ImageResult(*size, detections, tensors, job.timing, job.pixels))

    @contextmanager
    def _failing_only(self, *jobs: ImageJob) -> Iterator[None]:
        try:
            yield
        except FoveaError as error:
            for job in jobs:
                job.fail(error)
            if isinstance(error, DeviceLost):
                self._fail(str(error))
        except Exception:  # one image must not take the model down with it
            log.exception("model %s: an image failed", self.engine.card.name)
            for job in jobs:
                job.fail(InferenceFailed("an internal error; the server's log has the details"))
