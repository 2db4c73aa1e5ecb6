"""Detections of labelled images by a running server."""

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
from fovea_server.commands.predictors import RemotePredictor

# A server that others use as well may be full for a moment.
_RETRIES = 3


class RemoteDetector(RemotePredictor):
    """Asks a server, and learns from its answers what it does not tell otherwise.

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
        """What the server finds.

        Raises:
            InvalidRequest: the server cannot read the image, which is named.
            UnsupportedModel: it answers with tensors.
            FoveaClientError: it did not answer, or is not able to.
        """
        try:
            prediction = self.predict(image.data())
        except ServerError as error:
            if error.code not in {"invalid_image", "image_too_large", "body_too_large"}:
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
        """Backend and precision of the version that answered; None for what is not told."""
        path = f"/v2/models/{quote(self._model, safe='')}/versions/{self.version}/config"
        try:
            with httpx.Client(base_url=self._url) as http:
                answer = http.get(path)
        except httpx.TransportError:
            return None, None
        # Any other status: the configuration is kept from those who do not know a secret.
        if answer.status_code != httpx.codes.OK:
            return None, None
        config = answer.json()
        precision = config["parameters"].get("precision", {}).get("string_value")
        return config["backend"] or None, precision

    def labels_for(self, dataset: Dataset) -> list[str | None] | None:
        """What is known of the model's labels, once the images of a set were answered.

        Returns:
            A name by class id, None for each that was never answered; or None for a model
            without labels. As long as the set's own list of classes, if that is longer.
        """
        if not self.labels:
            return None
        count = max(len(dataset.class_names or ()), *(number + 1 for number in self.labels))
        return [self.labels.get(class_id) for class_id in range(count)]
