"""A request to run a model on images, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import FoveaError
from fovea_server.models.model import ServedModel
from fovea_server.observability.model_statistics import StageTimes
from fovea_server.tensors.messages import ImageResult, SentImage

Encode = Callable[[ImageResult, Vocabulary, PredictOptions], bytes]
"""Writes the answer for an image."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictRequest:
    """Images for a model, and how they are answered.

    Attributes:
        model: from `Models.get` or `find`.
        version: the version that the client named; None for the current one.
        images: an error stands for an image that could not be fetched, and is answered in its
            place.
        options: of the detector.
        timeout_s: work on the request stops after this.
        keep_pixels: return the upright images with the results.
        encode: writes the answer for one image, in the thread that computed it.
        request_id: as `InferRequest.id`.
        priority: as `InferRequest.priority`.
        timeout_us: as `InferRequest.timeout_us`.
    """

    model: ServedModel
    version: int | None
    images: Sequence[SentImage | FoveaError]
    options: PredictOptions
    timeout_s: float | None = None
    keep_pixels: bool = False
    encode: Encode | None = None
    request_id: str = ""
    priority: int = 0
    timeout_us: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The answer for a list of images.

    Attributes:
        task: e.g. "detect"; "tensors" where the head is not recognised.
        images: a result for each image, in order; an error where only that image failed.
        times: of the slowest image in each stage.
        total_ns: time from the request to the answer.
        stages: nanoseconds of the stages of a pipeline, by their names; empty for a model alone.
        options: that the model followed.
    """

    model: str
    version: int
    task: str
    vocabulary: Vocabulary
    images: tuple[ImageResult | FoveaError, ...]
    times: StageTimes
    total_ns: int
    stages: Mapping[str, int] = field(default_factory=dict)
    options: PredictOptions = field(default_factory=PredictOptions)

    def timing_ms(self) -> dict[str, float | dict[str, float]]:
        """Return milliseconds by stage, as /v1 answers them."""
        timing: dict[str, float | dict[str, float]] = {}
        timing |= _to_ms(self.times.of_image() | {"total": self.total_ns})
        if self.stages:
            timing["stages"] = _to_ms(self.stages)
        return timing


def _to_ms(times: Mapping[str, int]) -> dict[str, float]:
    return {stage: round(ns / 1e6, 3) for stage, ns in times.items()}
