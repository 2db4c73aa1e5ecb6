"""One version of one model, from folder to ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from fovea_engines.card import CARD_FILE, EngineCard
from fovea_engines.engine import Engine
from fovea_engines.options import PredictOptions
from fovea_engines.plan import MAX_BATCH
from fovea_engines.progress import Progress
from fovea_engines.tensorrt.mismatch import mismatch
from fovea_preprocess.errors import FoveaError, InvalidModel, ModelNotReady
from fovea_preprocess.image import ImageLimits
from fovea_server.config import ModelConfig
from fovea_server.pipeline import Pipeline
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.direct import DirectScheduler
from fovea_server.settings import Settings
from fovea_server.statistics import ModelStatistics
from fovea_server.v2.signature import Signature

log = logging.getLogger(__name__)


class State(StrEnum):
    """Where a model stands; Triton's words."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class ServedModel:
    """A model version that is being loaded, served or given back.

    Attributes:
        name: of the model.
        version: number of the version folder.
        reason: why it is not ready, in one sentence; empty when it is.
    """

    def __init__(
        self, name: str, version: int, folder: Path, settings: Settings, config: ModelConfig
    ) -> None:
        self.name = name
        self.version = version
        self.reason = "it is being loaded"
        self._state = State.LOADING
        self._folder = folder
        self._settings = settings
        self._config = config
        self._pipeline: Pipeline | None = None
        self._scheduler: Scheduler | None = None
        self.statistics = ModelStatistics()
        self._rebuilding = Progress()

    @property
    def state(self) -> State:
        """LOADING, READY, UNLOADING or UNAVAILABLE."""
        if self._pipeline is not None and self._pipeline.failure:
            return State.UNAVAILABLE
        return self._state

    @property
    def pipeline(self) -> Pipeline:
        """What answers images.

        Raises:
            ModelNotReady: it is loading, failed to load, has died or is being unloaded.
        """
        if self._pipeline is None or self.state is not State.READY:
            reason = (self._pipeline and self._pipeline.failure) or self.reason
            raise ModelNotReady(f"model '{self.name}' version {self.version}: {reason}")
        return self._pipeline

    @property
    def scheduler(self) -> Scheduler:
        """What answers tensors.

        Raises:
            ModelNotReady: as `pipeline`.
        """
        if self._scheduler is None or self.state is not State.READY:
            reason = (self._pipeline and self._pipeline.failure) or self.reason
            raise ModelNotReady(f"model '{self.name}' version {self.version}: {reason}")
        return self._scheduler

    @property
    def config(self) -> Any:
        """The complete `ModelConfig` message; see `signature` for its tensors."""
        return self._config.message

    @property
    def signature(self) -> Signature:
        """Its inputs and outputs, as clients see them."""
        return Signature.of(self.config)

    def load(self) -> None:
        """Open the engine, warm it up, start the stages. Never raises: see `state`.

        One that must be built again, and may be, stays LOADING until `rebuild`.
        """
        if self._state is not State.LOADING:
            return
        with self._told():
            if self._settings.rebuild and (reason := self._mismatch()) is not None:
                self.reason = f"it is being rebuilt: {reason}"
            else:
                self._serve()

    def rebuild(self) -> None:
        """Build the engine again and load it, where `load` has left that to do. Never raises."""
        if self._state is not State.LOADING:
            return
        # Here, because a build brings a lot that serving does not need.
        from fovea_engines.rebuild import rebuild

        with self._told():
            last = sum(EngineCard.read(self._folder / CARD_FILE).build_seconds.values())
            log.warning(
                "model %s version %d: %s; its last build took %.0f s",
                self.name,
                self.version,
                self.reason,
                last,
            )
            rebuild(self._folder, self._rebuilding)
            self._serve()

    def cancel(self) -> None:
        """Let a rebuild stop, now or as soon as it has begun."""
        self._rebuilding.cancelled = True

    def _mismatch(self) -> str | None:
        card = self._folder / CARD_FILE
        return mismatch(EngineCard.read(card)) if card.exists() else None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever goes wrong becomes the reason why it is not ready."""
        try:
            yield
        except FoveaError as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(f"its folder cannot be read: {error}")
        except Exception:  # one model must not keep the others from loading
            log.exception("model %s version %d", self.name, self.version)
            self.fail("an internal error; the server's log has the details")

    def _serve(self) -> None:
        started = time.monotonic()
        self._pipeline = self._start()
        self._scheduler = DirectScheduler(
            self.name,
            self.version,
            self.signature,
            self._pipeline.engine.session,
            self.statistics,
        )
        self.reason, self._state = "", State.READY
        card = self._pipeline.engine.card
        log.info(
            "model %s version %d is ready: %s %s, head %s, %.2f s",
            self.name,
            self.version,
            card.backend,
            card.precision,
            card.family or "not recognised (serves tensors)",
            time.monotonic() - started,
        )

    def _start(self) -> Pipeline:
        settings, delay_s = self._settings, self._config.max_queue_delay_s
        engine = Engine.open(self._folder, threads=settings.threads)
        try:
            _check_batch(engine)
            _warm_up(engine)
        except BaseException:
            engine.close()
            raise
        return Pipeline(
            engine,
            limits=ImageLimits(
                max_bytes=int(settings.max_image_mb * 1e6),
                max_pixels=int(settings.max_megapixels * 1e6),
            ),
            max_queue=settings.max_queue,
            max_queue_delay_s=settings.max_queue_delay_ms / 1e3 if delay_s is None else delay_s,
        )

    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, then free the engine."""
        self._state, self.reason = State.UNLOADING, "it is being unloaded"
        if self._pipeline is not None:
            self._pipeline.close(timeout_s)
            self._pipeline = None
        self._state, self.reason = State.UNAVAILABLE, "unloaded"

    def fail(self, reason: str) -> None:
        """It will not be ready, and says why."""
        self._state, self.reason = State.UNAVAILABLE, reason
        log.error("model %s version %d failed to load: %s", self.name, self.version, reason)


def _check_batch(engine: Engine) -> None:
    rows = engine.session.max_batch
    if not 1 <= rows <= MAX_BATCH:
        raise InvalidModel(
            f"its max_batch is {rows}, and must be from 1 to {MAX_BATCH}: build the engine again, "
            "or correct max_batch_size in config.pbtxt where it has no card.json"
        )


def _warm_up(engine: Engine) -> None:
    """Run everything once on an empty picture, as a lone request and as one of many."""
    feeds = {
        spec.name: np.zeros((1, *(abs(n) for n in spec.shape[1:])), spec.numpy_dtype)
        for spec in engine.session.inputs
    }
    if engine.preprocessor is not None:
        image = engine.session.inputs[0]
        if engine.preprocessor.spec.row_shape != image.shape[1:]:
            raise InvalidModel("its card.json does not fit the engine: build it again")
        empty = np.zeros((8, 8, 3), np.uint8)
        engine.preprocessor(empty, feeds[image.name][0])
        if engine.pictures is not None:
            engine.outputs_of(empty)
    for alone in (True, False):
        outputs = engine.session.infer(feeds, alone=alone)
        if engine.head is not None:
            engine.head.decode(outputs, 0, PredictOptions())
