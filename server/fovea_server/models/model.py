"""A version of a model: loads it from its directory, and follows its state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fovea_engines.backends.registry import get_backend, mismatch
from fovea_engines.engine import Engine
from fovea_engines.progress import Progress
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.model_config import ModelConfig
from fovea_preprocess.errors import (
    FoveaError,
    InvalidModel,
    ModelLoading,
    ModelNotReady,
    NotFound,
    ShuttingDown,
)
from fovea_server.models.config.document import config_json
from fovea_server.models.config.files import read_output_labels
from fovea_server.models.model_folder import find_faults
from fovea_server.models.opening import OpenEngine, images_of, open_engine
from fovea_server.observability.model_statistics import ModelStatistics
from fovea_server.pipelines.recipe import Pipeline, complete_config, is_pipeline
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.scheduling.ensemble import PipelineScheduler, Results
from fovea_server.scheduling.make import make_scheduler
from fovea_server.scheduling.model_io import ModelIO
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageRequest, InputTensor
from fovea_server.tensors.signature import AnswerSize, ModelSignature

log = logging.getLogger(__name__)

FindModel = Callable[[str, int | None], "ServedModel"]
"""Looks up a model that can respond now, by name and version.

A version of None means the current version.
"""


# Largest number of model executions per request. Nested ensembles could multiply this number: it
# doubles with each level if each ensemble runs two ensembles of the level below.
_MAX_EXECUTIONS = 256


class State(StrEnum):
    """The state of a model version, in Triton's terms."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class ServedModel:
    """A version of a model. It is loaded once; a reload creates a new object.

    Attributes:
        folder: directory of the version, inside the directory of the model.
        config: the configuration; complete once the state is READY.
        engine: the engine; None for an ensemble, and before the version is loaded. For a pipeline,
            the engine of its first model.
        fault: the reason why the process that runs the model cannot respond; empty while the
            process can respond.
        executions: number of executions per request, including all models that an ensemble runs.
    """

    def __init__(
        self,
        version: int,
        folder: Path,
        settings: Settings,
        config: ModelConfig,
        find: FindModel,
        cache: ResponseCache | None = None,
        open_engine: OpenEngine = open_engine,
    ) -> None:
        self.name = config.name
        self.version = version
        self._reason = "it is being loaded"
        self.config = config
        self.signature = ModelSignature.of(config)
        self.answer_size = AnswerSize(self.signature)
        self.statistics = ModelStatistics()
        self._state = State.LOADING
        self._retired = False
        self.folder = folder
        self._settings = settings
        self._find = find
        self._cache = cache
        self._open_engine = open_engine
        self.engine: Engine | None = None
        self.fault = ""
        self.executions = 1
        self._scheduler: Scheduler | None = None
        self._labels: dict[str, tuple[str, ...]] = {}
        self._members: list[ServedModel] = []
        self._progress = Progress()

    @cached_property
    def config_json(self) -> bytes:
        """The configuration of a READY version, in the JSON form of Triton's HTTP endpoint."""
        return config_json(self.config)

    @property
    def failure(self) -> str | None:
        """The reason why a loaded version can never respond again; None while it can respond."""
        scheduler = self._scheduler
        return None if scheduler is None else scheduler.failure

    @property
    def state(self) -> State:
        """The present state; a version with a failure or a fault is UNAVAILABLE."""
        if self._state is State.READY and (self.failure or self.fault):
            return State.UNAVAILABLE
        return self._state

    @property
    def reason(self) -> str:
        """The reason why the version is not ready, in one sentence; empty if it is ready."""
        return self.failure or self.fault or self._reason

    @property
    def is_live(self) -> bool:
        """True if the version has an engine, or will load one."""
        return self._state is not State.UNAVAILABLE

    @property
    def unserved(self) -> str:
        """The reason why the version should be served but is not; empty if there is none."""
        if self._retired or self.state is State.READY:
            return ""
        return self.reason

    @property
    def takes_images(self) -> bool:
        """True if the model accepts images."""
        # `engine` is read only once, because another thread may set it to None.
        engine = self.engine
        return engine is not None and engine.preprocessor is not None

    @property
    def task(self) -> str:
        """The task, for example "detect"; "tensors" if the outputs are not decoded."""
        engine = self.engine
        return engine.card.task if engine is not None and engine.head else "tensors"

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the version.

        Raises:
            ModelLoading, ModelNotReady: see `check_ready`.
        """
        scheduler = self._scheduler
        if self.state is not State.READY or scheduler is None:
            raise self._not_ready
        return scheduler

    def check_ready(self) -> None:
        """Raise ModelLoading while the version loads, and ModelNotReady if it cannot respond."""
        if self.state is not State.READY:
            raise self._not_ready

    @property
    def _not_ready(self) -> ModelNotReady:
        error = ModelLoading if self._state is State.LOADING else ModelNotReady
        return error(f"model '{self.name}' version {self.version}: {self.reason}")

    def expected_bytes(self, inputs: Sequence[InputTensor]) -> int:
        """Return the expected size of all outputs, in bytes.

        For an ensemble, the size includes the tensors between its steps.
        """
        expected = self.answer_size.expected(inputs)
        if self._members:
            return max(expected, sum(member.expected_bytes(inputs) for member in self._members))
        return expected

    def labels_of(self, output: str) -> tuple[str, ...] | None:
        """Return the class names of an output, in the order of class ids.

        Return None if the output has no class names.
        """
        return self._labels.get(output)

    @property
    def outdated(self) -> bool:
        """True if a model that this ensemble runs was reloaded or is gone."""
        try:
            return self._found_members() != self._members
        except (NotFound, ModelNotReady):
            return True

    def _found_members(self) -> list[ServedModel]:
        return [self._find(step.model_name, step.version) for step in self.config.steps]

    def _member_labels(self) -> dict[str, tuple[str, ...]]:
        labels = {}
        for step, member in zip(self.config.steps, self._members, strict=True):
            for output, tensor in step.output_map.items():
                if (known := member.labels_of(output)) is not None:
                    labels[tensor] = known
        return labels

    def load(self, *, rebuild: bool) -> None:
        """Open the engine, warm it up, and start the scheduler; never raise (see `state`).

        An engine that does not fit this machine is rebuilt if the settings allow that. A rebuild
        takes minutes. If `rebuild` is False, a version that needs a rebuild stays LOADING.
        """
        if self._state is not State.LOADING:
            return
        try:
            if self._settings.rebuild and (self.folder / CARD_FILE).exists():
                card = EngineCard.read(self.folder / CARD_FILE)
                # Only GPU engines store a file from which they can be rebuilt.
                kept = get_backend(card.backend).kept_file
                if kept and (reason := mismatch(card)) is not None:
                    self._reason = f"it is being rebuilt: {reason}"
                    if not rebuild:
                        return
                    self._rebuild(card)
            self.open()
        except ShuttingDown as error:
            self.fail(str(error))
        except FoveaError as error:
            self._fail_to_load(str(error))
        except OSError as error:
            self._fail_to_load(f"its folder cannot be read: {error}")
        except MemoryError as error:
            self._fail_to_load(
                f"it needs more memory than is available ({error}): use a smaller model"
            )
        except Exception:  # an error in one model must not prevent other models from loading
            log.exception("model %s version %d", self.name, self.version)
            self._fail_to_load("an internal error; the server's log has the details")

    def _rebuild(self, card: EngineCard) -> None:
        log.warning(
            "model %s version %d: %s; its last build took %.0f s",
            self.name,
            self.version,
            self._reason,
            sum(card.build_seconds.values()),
        )
        # Imported here, because it imports onnx, which takes 0.3 s; most servers never rebuild.
        from fovea_engines.build.rebuild import rebuild

        rebuild(self.folder, self._progress, allow_code=self._settings.allow_code)

    def open(self) -> None:
        """Open the engine, warm it up, and start the scheduler.

        Raises:
            FoveaError: one of the errors of `open_engine` and `make_scheduler`.
        """
        started = time.monotonic()
        if self.config.composing:
            self._members = self._found_members()
            self.executions += sum(member.executions for member in self._members)
            if self.executions > _MAX_EXECUTIONS:
                raise InvalidModel(
                    f"each request would run {self.executions} models and ensembles, over the "
                    f"limit of {_MAX_EXECUTIONS}: remove steps from this ensemble or from the "
                    "ensembles that it runs"
                )
            self._labels = self._member_labels()
        else:
            opened = self._open_engine(self.folder, self.config, self._settings, self._progress)
            self.engine, self.config = opened
        pipeline = bool(self._members) and is_pipeline(self.folder.parent)
        if pipeline:
            first = self._members[0]
            self.engine = first.engine
            self.config = complete_config(self.config, first.config, first.engine)
        self.signature = ModelSignature.of(self.config)
        self.answer_size = AnswerSize(self.signature)
        if pipeline:
            self._scheduler = self._make_pipeline_scheduler(Pipeline.read(self.folder.parent))
        else:
            self._labels |= read_output_labels(self.config, self.folder.parent)
            self._scheduler = self._make_engine_scheduler()
        self._reason, self._state = "", State.READY
        log.info(
            "model %s version %d is ready: %s, %.2f s",
            self.name,
            self.version,
            self._describe(),
            time.monotonic() - started,
        )
        labels = None if self.engine is None else self.engine.labels
        for fault in find_faults(self.folder.parent, labels):
            log.warning("model %s: %s", self.name, fault)

    def _make_engine_scheduler(self) -> Scheduler:
        engine, settings = self.engine, self._settings
        return make_scheduler(
            version=self.version,
            config=self.config,
            session=None if engine is None else engine.session,
            images=None if engine is None else images_of(engine, self.config, settings),
            max_queue=settings.max_queue,
            decoders=settings.decode_threads,
            statistics=self.statistics,
            cache=self._cache,
            find=lambda name, version: self._find(name, version).scheduler,
        )

    def _make_pipeline_scheduler(self, pipeline: Pipeline) -> Scheduler:
        engines = {each.name: each.engine for each in self._members if each.engine is not None}
        most = self._settings.max_queue
        predict = pipeline.bind(engines, self._ask, most)
        model_io = ModelIO(self.name, self.version, self.signature)
        return PipelineScheduler(model_io, predict, self.statistics, most)

    async def _ask(self, name: str, request: ImageRequest) -> tuple[Engine, Results]:
        """Run a model of this pipeline on images.

        Returns:
            The engine of the model's current version, and its results.
        """
        model = self._find(name, None)
        scheduler, engine = model.scheduler, model.engine
        assert engine is not None, "models of a pipeline take images"
        return engine, await scheduler.predict(request)

    def _describe(self) -> str:
        if self.config.composing:
            kind = "an ensemble" if self.engine is None else "made"
            return f"{kind} of {', '.join(self.config.composing)}"
        assert self.engine is not None, "it is loaded"
        card = self.engine.card
        head = card.family or "not recognised (serves tensors)"
        return f"{card.backend} {card.precision}, head {head}"

    def _fail_to_load(self, reason: str) -> None:
        # Clients read the reason, and the path of the repository must not be disclosed to them.
        reason = reason.replace(f"{self.folder.parents[1]}/", "")
        self.fail(reason)
        log.error("model %s version %d failed to load: %s", self.name, self.version, reason)

    def fail(self, reason: str) -> None:
        """Stop loading the version, for the given reason."""
        self._free(0)
        self._state, self._reason = State.UNAVAILABLE, reason

    def cancel(self) -> None:
        """Stop the warm-up or rebuild, now or as soon as it begins."""
        self._progress.cancelled = True

    def retire(self) -> None:
        """Reject new requests; a later call of `close` frees the engine."""
        self._retired = True
        self._state, self._reason = State.UNLOADING, "it is being unloaded"

    def close(self, timeout_s: float, reason: str = "unloaded") -> None:
        """Finish accepted requests within the timeout, then free the engine."""
        self.retire()
        self._free(timeout_s)
        self._state, self._reason = State.UNAVAILABLE, reason

    def _free(self, timeout_s: float) -> None:
        if self._scheduler is not None:
            self._scheduler.close(timeout_s)
        if self.engine is not None and not self._members:
            self.engine.close()
        self._scheduler = self.engine = None
