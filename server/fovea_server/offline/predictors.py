"""Predictors for one model: through a server, or with an engine in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import orjson

from fovea_client import Client, FoveaClientError, ImageError, Model, Prediction, Timing, as_json
from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_engines.results.options import MaskFormat, PredictOptions, choose_task
from fovea_engines.results.registry import reading
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption, InvalidResult
from fovea_server.offline.entry import InputImage, Result

IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Description of the model that predicts.

    Attributes:
        name: name of the model.
        version: version of the model.
        task: task of the model.
        vocabulary: class names and skeleton of the results.
        is_pipeline: True if the model is a pipeline, so that objects may have results of later
            stages.
        mask: form of masks that requests ask for.
    """

    name: str
    version: str
    task: str
    vocabulary: Vocabulary
    is_pipeline: bool = False
    mask: MaskFormat = "rle"

    def with_texts(self, texts: tuple[str, ...]) -> Self:
        """Return the model with the texts of a request in place of its classes."""
        task = choose_task(PredictOptions(labels=texts), self.task)
        return replace(self, task=task, vocabulary=replace(self.vocabulary, labels=texts))


@dataclass(frozen=True, slots=True)
class ImagePrediction:
    """The prediction for one image, with the model that made it and the durations of the stages."""

    model: str
    version: str
    task: str
    result: Result
    timing_ms: Timing

    @classmethod
    def of(cls, answer: Prediction, vocabulary: Vocabulary | None = None) -> Self:
        """Return the prediction in a server's response for one image.

        `vocabulary` has the class names; if it is None, they are read from the response.

        Raises:
            InvalidResult: the response is damaged, or has an error in place of a result.
        """
        [image] = answer.images
        if isinstance(image, ImageError):
            raise InvalidResult(f"{image.message} ({image.code})")
        with reading():
            # The result is converted to plain JSON now, as in the journal. So values that JSON
            # cannot represent are rejected here.
            json = orjson.loads(orjson.dumps(as_json(image)))
        result = Result(json, vocabulary)
        result.check()
        return cls(answer.model, answer.version, answer.task, result, answer.timing_ms)


class Predictor(Closing, Protocol):
    """Predicts images; several threads may use a predictor at the same time.

    Attributes:
        threads: useful number of threads, which is the number of images to predict at the same
            time.
    """

    threads: int

    def describe(self) -> ModelInfo:
        """Describe the model, and fix its version for all later predictions."""
        ...

    def predict(self, image: InputImage) -> ImagePrediction:
        """Return the prediction of an image."""
        ...


class RemotePredictor(Predictor):
    """Sends images to a server; the server has defaults for options that are not given.

    `options` are keywords of `Client.predict`.

    Raises:
        InvalidOption: `url` is invalid.
    """

    threads = IN_FLIGHT

    def __init__(self, url: str, model: str, options: dict[str, Any], *, retries: int = 0) -> None:
        try:
            self._client = Client(url, retries=retries)
        except ValueError as error:
            raise InvalidOption(str(error)) from error
        self._model = model
        self._options = options
        # If the metadata of the model is secret, the vocabulary stays None and is read from each
        # response.
        self._vocabulary: Vocabulary | None = None

    def describe(self) -> ModelInfo:
        """Request the metadata of the model, and fix its version.

        Raises:
            FoveaClientError: see `Client.model`.
            InvalidResult: the skeleton is damaged.
        """
        model = self._client.model(self._model, self._options.get("version"))
        self._options = self._options | {"version": model.version}
        with reading():
            skeleton = Skeleton.from_json((model.card or {}).get("skeleton"))
        labels = self._options.get("labels", model.labels)
        self._vocabulary = Vocabulary(labels, skeleton)
        return ModelInfo(
            model.name,
            model.version or "",
            model.task or "tensors",
            self._vocabulary,
            is_pipeline=bool(model.made_of),
        )

    def predict(self, image: InputImage) -> ImagePrediction:
        """Send an image, or the pixels of a video frame, and return the prediction.

        Raises:
            FoveaClientError: see `Client.predict`.
            InvalidResult: the response is damaged.
        """
        sent = image.upright.pixels if image.data is None else image.data
        answer = self._client.predict(self._model, sent, **self._options)
        return ImagePrediction.of(answer, self._vocabulary)

    def model(self, version: int | str | None) -> Model | None:
        """Return the metadata of a version, by default the newest; None if it cannot be read."""
        try:
            return self._client.model(self._model, version)
        except FoveaClientError:
            return None

    def close(self) -> None:
        """Close the connections; further calls do nothing."""
        self._client.close()


class LocalPredictor(Predictor):
    """Opens the engine in a version's directory and runs it in this process.

    If `alone` is True, the engine computes one image at a time, on all cores. `allow_code` is an
    argument of `Engine.open`.
    """

    def __init__(
        self, folder: Path, options: PredictOptions, *, alone: bool, allow_code: bool = False
    ) -> None:
        self._engine = Engine.open(folder, allow_code=allow_code)
        self._model, self._version = folder.parent.name, folder.name
        self._options = self._engine.resolve(options)
        self._alone = alone
        session, card = self._engine.session, self._engine.card
        self._vocabulary = self._engine.vocabulary(options.labels)
        self._task = choose_task(options, card.task)
        busy = IN_FLIGHT if session.offloads else session.concurrency
        self.threads = 1 if alone else busy

    @property
    def card(self) -> EngineCard:
        """The card of the engine."""
        return self._engine.card

    def describe(self) -> ModelInfo:
        """Describe the model from its card."""
        return ModelInfo(self._model, self._version, self._engine.card.task, self._vocabulary)

    def predict(self, image: InputImage) -> ImagePrediction:
        """Run the engine on an image.

        The stage "infer" in the durations includes letterboxing, the engine and NMS.
        """
        started = time.perf_counter()
        upright = image.upright
        decoded = time.perf_counter()
        found = self._engine.predict(upright.pixels, self._options, alone=self._alone)
        ended = time.perf_counter()
        size = {name: getattr(upright, name) for name in ("width", "height", "orientation")}
        result = Result(size | found.to_json(self._vocabulary, self._options), self._vocabulary)
        timing = Timing(
            decode=round(1e3 * (decoded - started), 3),
            letterbox=0.0,
            queue=0.0,
            infer=round(1e3 * (ended - decoded), 3),
            postprocess=0.0,
            total=round(1e3 * (ended - started), 3),
        )
        return ImagePrediction(self._model, self._version, self._task, result, timing)

    def close(self) -> None:
        """Close the engine; further calls do nothing."""
        self._engine.close()
