"""The stages of a request on its way to an answer, and the time that it spends in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fovea_server.observability.histogram import Family, Histogram, Labels

_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class StageTimes(NamedTuple):
    """The times of a request, an image or a batch, nanoseconds, in stages that do not overlap.

    Attributes:
        queue: the wait for the engine; 0 of a batch.
        decode: of an image, from its file to pixels.
        prepare: making the rows: an image is letterboxed, tensors of several requests are joined.
        infer: the engine.
        output: taking the results apart; of an image, decoding the head and writing the answer.
    """

    queue: int = 0
    decode: int = 0
    prepare: int = 0
    infer: int = 0
    output: int = 0

    @property
    def input(self) -> int:
        """The work before the engine."""
        return self.decode + self.prepare

    def of_tensors(self) -> dict[str, int]:
        """Return the times of a request for tensors by the names of Triton."""
        return {
            "queue": self.queue,
            "input": self.input,
            "infer": self.infer,
            "output": self.output,
        }

    def of_image(self) -> dict[str, int]:
        """Return the times of an image by the names that clients read."""
        return {
            "decode": self.decode,
            "letterbox": self.prepare,
            "queue": self.queue,
            "infer": self.infer,
            "postprocess": self.output,
        }


NO_TIMES = StageTimes()


def longest(times: Iterable[StageTimes]) -> StageTimes:
    """Return the longest time of each stage; 0 where there are no times."""
    return StageTimes(*map(max, zip(NO_TIMES, *times, strict=True)))


class Stages:
    """Histograms of the times that images spend in each stage; safe in any thread."""

    def __init__(self) -> None:
        self._histograms = {stage: Histogram(_BOUNDS_S) for stage in NO_TIMES.of_image()}

    def observe(self, times: StageTimes) -> None:
        """Add the times of an image."""
        for histogram, ns in zip(self._histograms.values(), times.of_image().values(), strict=True):
            histogram.observe(ns / 1e9)

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
