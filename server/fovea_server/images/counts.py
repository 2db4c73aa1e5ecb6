"""Counts the images of a model from acceptance to answer, and measures their stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, fields

from fovea_engines.plural import counted
from fovea_preprocess.errors import BackendError, InvalidRequest, QueueFull, Unavailable
from fovea_server.images.job import ImageJob, ImageResult, Timing
from fovea_server.statistics.family import Family, Labels
from fovea_server.statistics.histogram import Histogram
from fovea_server.statistics.model import FailureReason, ModelStatistics, Spans

# Weight of the newest observation in the smoothed rate: about the last twenty answers count.
_SMOOTHING = 0.1
_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Admission:
    """Limits the images accepted and not yet answered, and measures how fast they are answered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self.inside = 0
        self._last_leave: float | None = None
        self._interval_s = 0.0

    def enter(self, count: int) -> None:
        """Accept `count` images, all or none.

        Raises:
            QueueFull: they would exceed the limit now.
            InvalidRequest: they exceed the limit by themselves.
        """
        if count > self.limit:
            raise InvalidRequest(
                f"the request has {count} images and the limit is {self.limit} (--max-queue); "
                "split it"
            )
        with self._lock:
            if self.inside + count > self.limit:
                raise QueueFull(
                    f"{counted(self.inside, 'image')} accepted and not yet answered, and "
                    f"the limit is {self.limit} (--max-queue); send again after the time in "
                    "Retry-After",
                    retry_after_s=self.inside * self._interval_s,
                )
            if self.inside == 0:
                # Idle time says nothing about speed.
                self._last_leave = time.monotonic()
            self.inside += count

    def leave(self, *, served: bool) -> None:
        """Count an answered image; one that is not `served` failed or was cancelled."""
        now = time.monotonic()
        with self._lock:
            self.inside -= 1
            if not served:
                # It took no time, and says nothing about speed.
                return
            if self._last_leave is not None:
                interval = now - self._last_leave
                weight = _SMOOTHING if self._interval_s else 1.0
                self._interval_s += weight * (interval - self._interval_s)
            self._last_leave = now


class Stages:
    """Histograms of the times of each stage; safe in any thread."""

    def __init__(self) -> None:
        self._histograms = {stage.name: Histogram(_BOUNDS_S) for stage in fields(Timing)}

    def observe(self, timing: Timing) -> None:
        """Add the times of an image."""
        for stage, seconds in asdict(timing).items():
            self._histograms[stage].observe(seconds)

    def add_to(self, family: Family, labels: Labels) -> None:
        """Add the histograms to the `stage_family`, each with its stage as a label."""
        for stage, histogram in self._histograms.items():
            histogram.add_to(family, {**labels, "stage": stage})


def stage_family() -> Family:
    """Make the family of the stages of all models."""
    return Family(
        "fovea_stage_duration_seconds",
        "histogram",
        "Time that images spend in each stage on their way to an answer",
    )


class ImageCounts:
    """Counts images in the same terms as tensors, in the statistics of their model.

    Decode and letterbox are input; head, NMS and mapping back are output.
    """

    def __init__(self, statistics: ModelStatistics) -> None:
        self.stages = Stages()
        self._statistics = statistics

    def executed(self, jobs: Sequence[ImageJob], infer_s: float, output_s: float) -> None:
        """Count one execution of the engine for these images."""
        slowest = max(job.timing.decode + job.timing.letterbox for job in jobs)
        spans = Spans(
            compute_input=_ns(slowest), compute_infer=_ns(infer_s), compute_output=_ns(output_s)
        )
        self._statistics.executed(len(jobs), spans)

    def answered(self, job: ImageJob, future: Future[ImageResult]) -> None:
        """Count an image that was answered, failed, or was cancelled."""
        total = _ns(time.monotonic() - job.accepted_at)
        if future.cancelled():
            self._statistics.failed(total, FailureReason.CANCELED)
        elif (error := future.exception()) is not None:
            self._statistics.failed(total, _reason(error))
        else:
            timing = job.timing
            spans = Spans(
                queue=_ns(timing.queue),
                compute_input=_ns(timing.decode + timing.letterbox),
                compute_infer=_ns(timing.infer),
                compute_output=_ns(timing.postprocess),
            )
            self._statistics.succeeded(1, total, spans)
            self.stages.observe(timing)

    def refused(self, count: int) -> None:
        """Count images that were refused because the queue was full."""
        for _ in range(count):
            self._statistics.failed(0, FailureReason.REJECTED)


def _reason(error: BaseException) -> FailureReason:
    if isinstance(error, Unavailable):
        return FailureReason.REJECTED
    return FailureReason.BACKEND if isinstance(error, BackendError) else FailureReason.OTHER


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
