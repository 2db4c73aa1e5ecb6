"""Answers for one model, by a server or by an engine that is opened in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fovea_client import Client, FoveaClientError, Model, Prediction, Timing, image_result
from fovea_engines.detect.draw.draw import annotated
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.image import decode_image
from fovea_server.http.v1.found_json import found_json
from fovea_server.tensors.image_messages import Vocabulary


class RemotePredictor(Closing):
    """Asks a server, which decides the options that are not given.

    `options` are keywords of `Client.predict`. InvalidOption: `url` is not an address.
    """

    def __init__(self, url: str, model: str, options: dict[str, Any], *, retries: int = 0) -> None:
        try:
            self._client = Client(url, retries=retries)
        except ValueError as error:
            raise InvalidOption(str(error)) from error
        self._model = model
        self._options = options

    def predict(self, image: bytes) -> Prediction:
        """Find what is in an encoded image."""
        return self._client.predict(self._model, image, **self._options)

    def annotate(self, image: bytes) -> bytes:
        """Draw the detections into an encoded image, as JPEG."""
        return self._client.annotate(self._model, image, **self._options)

    def model(self, version: int | str | None) -> Model | None:
        """Read the metadata of a version, None of the newest; None where they are secret."""
        try:
            return self._client.model(self._model, version)
        except FoveaClientError:
            return None

    def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        self._client.close()


class LocalPredictor(Closing):
    """Opens the engine in a version's folder and runs it in this process."""

    def __init__(self, folder: Path, options: PredictOptions) -> None:
        self._engine = Engine.open(folder)
        self._model, self._version = folder.parent.name, folder.name
        self._options = self._engine.resolve(options)
        card = self._engine.card
        self._words = Vocabulary(self._engine.labels, card.skeleton, "")

    def predict(self, image: bytes) -> Prediction:
        """Run the engine; in the timing, "infer" is everything from letterbox to NMS."""
        started = time.perf_counter()
        upright = decode_image(image)
        decoded = time.perf_counter()
        found = self._engine.predict(upright.pixels, self._options)
        ended = time.perf_counter()
        size = {name: getattr(upright, name) for name in ("width", "height", "orientation")}
        result = image_result(size | found_json(found, self._words, self._options))
        timing = Timing(
            decode=round(1e3 * (decoded - started), 3),
            letterbox=0.0,
            queue=0.0,
            infer=round(1e3 * (ended - decoded), 3),
            postprocess=0.0,
            total=round(1e3 * (ended - started), 3),
        )
        return Prediction(self._model, self._version, self._engine.card.task, (result,), timing)

    def annotate(self, image: bytes) -> bytes:
        """Draw the detections into an encoded image, as JPEG."""
        pixels = decode_image(image).pixels
        found = self._engine.predict(pixels, self._options)
        words = self._words
        return annotated(found, pixels, words.labels, words.skeleton, "image/jpeg")

    def close(self) -> None:
        """Close the engine. Calling it again does nothing."""
        self._engine.close()
