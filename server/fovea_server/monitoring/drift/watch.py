"""Compares what models get with the images of their builds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fovea_engines.repository.card import compared
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, NotFound
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Prediction
from fovea_server.feature import Feature
from fovea_server.models.model import ServedModel
from fovea_server.monitoring.drift.window import LARGEST, LiveWindow
from fovea_server.observability.family import Family
from fovea_server.tensors.image_messages import ImageResult, SentImage

if TYPE_CHECKING:
    from fastapi import APIRouter

_USUAL = PredictOptions()
# With others, less or other is found.
_choosing = attrgetter("iou", "classes", "max_det", "agnostic", "labels", "tile")
_CHOSEN = _choosing(_USUAL)


class Drift(Feature):
    """Sees every answer, and keeps the numbers of the last ones of each model version.

    It computes when it is asked: on the event loop it only adds to a window.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._windows: WeakKeyDictionary[ServedModel, LiveWindow | None] = WeakKeyDictionary()

    def router(self) -> APIRouter:
        """Make the route of the report."""
        from fovea_server.monitoring.drift.routes import drift_routes

        return drift_routes(self)

    def observe(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        """Add images to the window of a model."""
        try:
            window = self._windows[model]
        except KeyError:
            window = self._begin(model)
        if window is None:
            return
        options = prediction.options
        usual = options.conf <= _USUAL.conf and _choosing(options) == _CHOSEN
        if not usual:
            window.left_out += len(images)
        for image, result in zip(images, prediction.images, strict=True):
            if isinstance(image, FoveaError) or not isinstance(result, ImageResult):
                continue
            pixels = result.width * result.height
            if usual and (found := compared(result.found, pixels)):
                window.found.append(found)
            if time.monotonic() >= window.next_look and pixels <= LARGEST:
                window.next_look = math.inf
                asyncio.get_running_loop().call_soon(self._look, window, image)

    def window(self, name: str) -> tuple[ServedModel, LiveWindow]:
        """Return the version of a model that answers, and its window; call it on the event loop.

        Raises as `Models.get`, and NotFound: its card has nothing to compare with.
        """
        model = self._models.get(name, None)
        # What is not loaded yet has no card. It says why, where the version is not ready.
        _ = model.scheduler
        if (window := self._windows.get(model) or self._begin(model)) is None:
            raise NotFound(
                f"model '{name}', version {model.version}, has no images of its build to compare "
                "with: build it again with 50 images or more of its own, as --images, "
                "--calibration or --data"
            )
        return model, window

    def families(self) -> Iterable[Family]:
        """Return the metrics."""
        drift = Family(
            "fovea_drift", "gauge", "Population stability index of live images and the build's"
        )
        images = Family("fovea_drift_images", "gauge", "Live images that are compared")
        for model in self._models:
            if (window := self._windows.get(model)) is None:
                continue
            for name, live in window.count().items():
                labels = {"model": model.name, "version": str(model.version), "quantity": name}
                images.add(labels, round(float(live.sum())))
                if (distance := window.baseline.quantities[name].distance(live)) is not None:
                    drift.add(labels, round(distance, 4))
        return drift, images

    def _begin(self, model: ServedModel) -> LiveWindow | None:
        engine = model.engine
        # What a pipeline is sent, its first model does not answer as it was built.
        baseline = None if engine is None or model.config.composing else engine.card.baseline
        window = self._windows[model] = None if baseline is None else LiveWindow(baseline)
        return window

    def _look(self, window: LiveWindow, image: SentImage) -> None:
        asyncio.get_running_loop().run_in_executor(None, window.look, image)
