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
"""Function that encodes the result of one image."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictRequest:
    """Images for a model, with options for the prediction and the response.

    Attributes:
        model: model from `Models.get` or `Models.find`.
        version: version that the client named; None for the current version.
        images: images. If an image could not be fetched, its error is in its place, and is returned
            at the same position.
        options: prediction options.
        timeout_s: timeout of the request in seconds; None for no timeout.
        keep_pixels: True to return the pixels of the upright images with the results.
        encode: function that encodes the result of one image. It runs in the thread that computed
            the result.
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
        images: result of each image, in the order of the request. If an image failed, its error.
        times: for each stage, the duration of the slowest image.
        total_ns: time from the request to the result in nanoseconds.
        stages: durations in nanoseconds by the names of a pipeline's stages; empty for a single
            model.
        options: prediction options that the model used.
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
        """Return the duration of each stage in milliseconds, in the form of /v1."""
        timing: dict[str, float | dict[str, float]] = {}
        timing |= _to_ms(self.times.of_image() | {"total": self.total_ns})
        if self.stages:
            timing["stages"] = _to_ms(self.stages)
        return timing


def _to_ms(times: Mapping[str, int]) -> dict[str, float]:
    return {stage: round(ns / 1e6, 3) for stage, ns in times.items()}
