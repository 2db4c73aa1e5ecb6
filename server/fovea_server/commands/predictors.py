"""Where `fovea predict` gets its answers: a server, or an engine opened right here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from fovea_client import Box, Client, Detection, ImageResult, Prediction, Timing
from fovea_engines.detections import Detections
from fovea_engines.options import PredictOptions


class Predictor(Protocol):
    """Answers for one model with one set of options."""

    def predict(self, image: bytes) -> Prediction:
        """Detections in an encoded picture.

        Raises:
            FoveaError, FoveaClientError: there are none, and why.
        """
        ...

    def annotate(self, image: bytes) -> bytes:
        """A JPEG of the picture that was last given to `predict`, with its detections drawn in.

        Raises:
            FoveaError, FoveaClientError: there is none, and why.
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class RemotePredictor:
    """Asks a server. Only options that were given travel: the rest are the server's."""

    def __init__(self, url: str, model: str, options: dict[str, object]) -> None:
        self._client = Client(url)
        self._model = model
        self._options = options
