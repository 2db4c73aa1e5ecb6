"""Answers for one model, by a server or by an engine that is opened in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import numpy as np

from fovea_client import Box, Client, Detection, ImageResult, Prediction, ServerError, Timing
from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption, InvalidRequest, UnsupportedModel
from fovea_server.bench.accuracy import labels_by_id

if TYPE_CHECKING:
    from fovea_engines.evaluate.accuracy.dataset import Dataset
    from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage

ERRORS_OF_ONE_IMAGE = {"invalid_image", "image_too_large", "body_too_large"}
"""Codes of a server's errors that do not concern the next image."""


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

    def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        self._client.close()


class RemoteDetector(RemotePredictor):
    """Detects objects in labelled images with a server.

    Labels and version are collected from its answers: its metadata may be secret.

    Attributes:
        version: of the model that answered; None before the first answer.
        labels: class names by id, of the classes that were answered so far; empty for a model
            without labels, whose classes are called by their number.
    """

    def __init__(self, url: str, model: str, version: int | None, options: PredictOptions) -> None:
        given = {
            "version": version,
            "conf": options.conf,
            "iou": options.iou,
            "max_det": options.max_det,
        }
        # A server that others use as well may be full for a moment.
        super().__init__(url, model, given, retries=3)
        self._url = url
        self.version: str | None = None
        self.labels: dict[int, str] = {}

    def __call__(self, image: LabelledImage) -> Detections:
        """Ask for the detections in an image.

        Raises:
            InvalidRequest: the server cannot read the image, which is named.
            UnsupportedModel: it answers with tensors.
        """
        try:
            prediction = self.predict(image.data())
        except ServerError as error:
            if error.code not in ERRORS_OF_ONE_IMAGE:
                raise
            raise InvalidRequest(f"{image.path}: {error.message}") from error
        answer = prediction.image
        if answer.tensors:
            raise UnsupportedModel(
                f"{self._model} serves tensors only, so there are no boxes to measure"
            )
        image.check_size(answer.width, answer.height)
        self.version = prediction.version
        found = answer.detections
        named = {d.class_id: d.class_name for d in found if d.class_name != str(d.class_id)}
        self.labels.update(named)
        corners = [(d.box.x1, d.box.y1, d.box.x2, d.box.y2) for d in found]
        return Detections(
            boxes=np.array(corners, np.float32).reshape(-1, 4),
            scores=np.array([d.score for d in found], np.float32),
            class_ids=np.array([d.class_id for d in found], np.int32),
        )

    def engine(self) -> tuple[str | None, str | None]:
        """Read backend and precision of the version that answered; None where they are secret."""
        path = f"/v2/models/{quote(self._model, safe='')}/versions/{self.version}/config"
        try:
            with httpx.Client(base_url=self._url) as http:
                answer = http.get(path)
        except httpx.TransportError:
            return None, None
        # With another status, the configuration is restricted.
        if answer.status_code != httpx.codes.OK:
            return None, None
        config = answer.json()
        precision = config["parameters"].get("precision", {}).get("string_value")
        return config["backend"] or None, precision

    def labels_for(self, dataset: Dataset) -> list[str | None] | None:
        """Return the class names by id, as `labels_by_id` does."""
        return labels_by_id(self.labels, dataset)


class LocalPredictor(Closing):
    """Opens the engine in a version's folder and runs it in this process."""

    def __init__(self, folder: Path, options: PredictOptions) -> None:
        # Imported late, as a server can be asked without it.
        from fovea_engines.engine import Engine

        self._engine = Engine.open(folder)
        self._model, self._version = folder.parent.name, folder.name
        self._options = self._engine.resolve(options)

    def predict(self, image: bytes) -> Prediction:
        """Run the engine; in the timing, "infer" is everything from letterbox to NMS."""
        from fovea_preprocess.image import decode_image

        started = time.perf_counter()
        upright = decode_image(image)
        decoded = time.perf_counter()
        found = self._engine.detect(upright.pixels, self._options)
        ended = time.perf_counter()
        result = ImageResult(upright.width, upright.height, upright.orientation, self._typed(found))
        timing = Timing(
            decode=round(1e3 * (decoded - started), 3),
            letterbox=0.0,
            queue=0.0,
            infer=round(1e3 * (ended - decoded), 3),
            postprocess=0.0,
            total=round(1e3 * (ended - started), 3),
        )
        return Prediction(self._model, self._version, "detect", (result,), timing)

    def annotate(self, image: bytes) -> bytes:
        """Draw the detections into an encoded image, as JPEG."""
        from fovea_engines.detect.draw import draw, encode
        from fovea_preprocess.image import decode_image

        pixels = decode_image(image).pixels
        found = self._engine.detect(pixels, self._options)
        return encode(draw(pixels, found, self._engine.labels), "image/jpeg")

    def close(self) -> None:
        """Close the engine. Calling it again does nothing."""
        self._engine.close()

    def _typed(self, found: Detections) -> tuple[Detection, ...]:
        labels = self._engine.labels
        # Rounded as the server rounds: finer than any model.
        boxes = found.boxes.astype(np.float64).round(2).tolist()
        scores = found.scores.astype(np.float64).round(5).tolist()
        return tuple(
            Detection(Box(*box), score, id_, class_name(labels, id_))
            for box, score, id_ in zip(boxes, scores, found.class_ids.tolist(), strict=True)
        )
