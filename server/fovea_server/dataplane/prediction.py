"""A request to run a model on images, and its result."""

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
"""Function that encodes the result for an image."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictRequest:
    """Images for a model, and how to answer them.

    Attributes:
        model: model from `Models.get` or `Models.find`.
        version: version that the client named; None for the current one.
        images: images. An error in place of an image that could not be fetched is returned at
            the same position.
        options: prediction options.
        timeout_s: timeout of the request in seconds; None for no timeout.
        keep_pixels: True to return the upright images with the results.
        encode: encodes the result for one image, in the thread that computed it.
        request_id: see `InferRequest.id`.
        priority: see `InferRequest.priority`.
        timeout_us: see `InferRequest.timeout_us`.
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
    """The results for a list of images.

    Attributes:
        model: name of the model.
        version: version of the model.
        task: task, for example "detect"; "tensors" if the head is unknown.
        vocabulary: names of the classes.
        images: a result for each image, in order; an error if only that image failed.
        times: durations of the slowest image in each stage.
        total_ns: nanoseconds from the request to the result.
        stages: nanoseconds of the stages of a pipeline, by name; empty for a single model.
        options: options that the model used.
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
        """Return the milliseconds of each stage in the form of /v1."""
        timing: dict[str, float | dict[str, float]] = {}
        timing |= _to_ms(self.times.of_image() | {"total": self.total_ns})
        if self.stages:
            timing["stages"] = _to_ms(self.stages)
        return timing


def _to_ms(times: Mapping[str, int]) -> dict[str, float]:
    return {stage: round(ns / 1e6, 3) for stage, ns in times.items()}
