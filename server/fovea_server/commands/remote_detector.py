"""Detects objects in labelled images with a running server."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import numpy as np

from fovea_client import ServerError
from fovea_engines.detect.detections import Detections
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.evaluate import EVALUATION
from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage
from fovea_preprocess.errors import InvalidRequest, UnsupportedModel
from fovea_server.commands.predictors import ERRORS_OF_ONE_IMAGE, RemotePredictor

# A server that others use as well may be full for a moment.
_RETRIES = 3


class RemoteDetector(RemotePredictor):
    """Asks a server, and collects labels and version from its answers: its metadata may be secret.

    Attributes:
        version: of the model that answered; None before the first answer.
        labels: class names by id, of the classes that were answered so far; empty for a model
            without labels, whose classes are called by their number.

    Raises:
        InvalidOption: `url` is not an address.
    """

    def __init__(self, url: str, model: str, version: int | None) -> None:
        options = {
            "version": version,
            "conf": EVALUATION.conf,
            "iou": EVALUATION.iou,
            "max_det": EVALUATION.max_det,
        }
        super().__init__(url, model, options, retries=_RETRIES)
        self._url = url
        self.version: str | None = None
        self.labels: dict[int, str] = {}

    def __call__(self, image: LabelledImage) -> Detections:
        """Ask for the detections in an image.

        Raises:
            InvalidRequest: the server cannot read the image, which is named.
            UnsupportedModel: it answers with tensors.
            FoveaClientError: the server failed or did not answer.
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
        """Return the class names by id; None for a class that no answer had.

        The list is at least as long as the dataset's own list of classes. A model without labels
        has no list.
        """
        if not self.labels:
            return None
        count = max(len(dataset.class_names or ()), *(number + 1 for number in self.labels))
        return [self.labels.get(class_id) for class_id in range(count)]
