"""A predictor that runs a pipeline in this process, as a server does."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

from fovea_client import Timing
from fovea_engines.device import usable_cores
from fovea_engines.results.options import PredictOptions
from fovea_server.app import build_app
from fovea_server.http.v1.answers import boxes_json
from fovea_server.models.model import ServedModel
from fovea_server.models.registry import make_settings
from fovea_server.offline.entry import InputImage, Result
from fovea_server.offline.predictors import ImagePrediction, ModelInfo, Predictor


class JoinedPredictor(Predictor):
    """Loads a pipeline, and the models that it runs.

    Raises:
        FoveaError: one of the errors of `Registry.load`.
    """

    def __init__(self, folder: Path, options: PredictOptions, *, allow_code: bool) -> None:
        self._app = build_app(make_settings(folder, allow_code=allow_code))
        self._plane = self._app.service.plane
        self._name, self._options = folder.name, options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="answers", daemon=True)
        self._thread.start()
        self._app.registry.load(self._name)
        self.threads = usable_cores()

    @property
    def _model(self) -> ServedModel:
        return self._plane.models.get(self._name)

    def describe(self) -> ModelInfo:
        """Describe the pipeline; its task and vocabulary are from its first model."""
        model = self._model
        engine = model.engine
        assert engine is not None, "its first model takes images"
        version, task = str(model.version), model.task
        about = self._name, version, task, engine.vocabulary(self._options.labels)
        return ModelInfo(*about, is_pipeline=bool(model.config.composing))

    def predict(self, image: InputImage) -> ImagePrediction:
        """Run the models of the pipeline on an image; raise the errors of `DataPlane.predict`."""
        sent = image.upright if image.data is None else image.data
        prediction = boxes_json(self._plane, self._model, None, [sent], self._options, None, "")
        answer = json.loads(asyncio.run_coroutine_threadsafe(prediction, self._loop).result())
        [found], timing = answer["images"], Timing(**answer["timing_ms"])
        result = Result(found, self.describe().vocabulary)
        return ImagePrediction(self._name, answer["version"], answer["task"], result, timing)

    def close(self) -> None:
        """Unload the models; further calls do nothing."""
        if self._thread.is_alive():
            self._app.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
