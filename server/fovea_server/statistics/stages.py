"""The stages of an image on its way to an answer, and the time that images spend in them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fovea_server.statistics.family import Family, Labels
from fovea_server.statistics.histogram import Histogram

_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(slots=True)
class Timing:
    """Seconds spent in each stage."""

    decode: float = 0.0
    letterbox: float = 0.0
    queue: float = 0.0
    infer: float = 0.0
    postprocess: float = 0.0


class Stages:
    """Histograms of the times of each stage; safe in any thread."""

    def __init__(self) -> None:
        self._histograms = {stage.name: Histogram(_BOUNDS_S) for stage in fields(Timing)}

    def observe(self, timing: Timing) -> None:
        """Add the times of an image."""
        for stage, histogram in self._histograms.items():
            histogram.observe(getattr(timing, stage))

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
