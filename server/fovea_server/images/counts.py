"""Counts the answers of a pipeline in the same terms as those for tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

from fovea_preprocess.errors import BackendError, Unavailable
from fovea_server.images.job import ImageJob, ImageResult
from fovea_server.images.stages import Stages
from fovea_server.statistics.model import FailureReason, ModelStatistics, Spans


class ImageCounts:
    """Counts images: decode and letterbox as input; head, NMS and mapping back as output.

    Attributes:
        stages: histograms of the stages' times.
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
