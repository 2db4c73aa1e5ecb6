"""Everything that a transport may ask of the models.

HTTP, gRPC and metrics convert to and from this, and reach no model by another way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from fovea_engines.detect.embedding import Embedding
from fovea_engines.detect.options import PredictOptions, task_with, without_track
from fovea_engines.engine import Engine
from fovea_engines.repository.config_pbtxt import parse_config
from fovea_engines.session import Array
from fovea_preprocess.errors import (
    DeadlineExceeded,
    FoveaError,
    InvalidModel,
    InvalidOption,
    InvalidRequest,
    ModelNotReady,
    Unavailable,
)
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.charge import charge, rows_of
from fovea_server.dataplane.images import Prediction, answer_of_bytes
from fovea_server.dataplane.model_documents import (
    Model,
    ModelList,
    ModelStatistics,
    VersionStatistics,
    model_document,
    model_list,
)
from fovea_server.dataplane.part import CanaryTurns, FrameTurn, FrameTurnOf, TritonTraces
from fovea_server.dataplane.pixel_room import PixelRoom
from fovea_server.dataplane.recording import record_images, record_tensors
from fovea_server.dataplane.top_classes import check_classes, replace_by_classes
from fovea_server.dataplane.v2_documents import (
    model_metadata,
    statistics_json,
    version_statistics,
)
from fovea_server.json_text import check_weight
from fovea_server.models.model import ServedModel, State
from fovea_server.models.registry import Registry
from fovea_server.models.slot import IndexEntry
from fovea_server.statistics.stages import Timing
from fovea_server.tensors.image_messages import ImageRequest, ImageResult, SentImage, Vocabulary
from fovea_server.tensors.messages import InferRequest, InferResponse
from fovea_server.tensors.results.forms import image_outputs
from fovea_server.traffic.call import CALL, CLIENT
from fovea_server.traffic.holder import Holder
from fovea_server.traffic.spans import SPAN

log = logging.getLogger(__name__)

# Answers from this many bytes on are counted before they are computed.
_COUNTED = 65_536
# Most threads of loads wait for others that load the same model.
_LOAD_THREADS = 8
# Bytes that drawing takes for each of a pixel, measured: the original, a copy, and its encoding.
_DRAWING = 4
_STAGES = tuple(stage.name for stage in fields(Timing))

T = TypeVar("T")

Encode = Callable[[ImageResult, Vocabulary, PredictOptions], bytes]
"""Writes the answer for an image."""
Write = Callable[[ImageResult], bytes]
Observe = Callable[[ServedModel, Sequence[SentImage | FoveaError], Prediction], None]
"""Sees images that were answered, on the event loop and before the answer is sent."""


class DataPlane:
    """Answers from the models of a registry; iterating gives every version that is loaded.

    `get` looks a model up for /v1, and `find` for Triton's clients.

    Attributes:
        draining: the server is about to stop: it still answers, and says that it is not ready.
        turn_of: of requests with `track`; a package that tracks sets it.
        observers: called with all images that are answered; packages that keep or count them add
            theirs.
        canaries: by the name of their model.
    """

    def __init__(self, registry: Registry, trace: TritonTraces, room: PixelRoom) -> None:
        self._registry = registry
        self._trace = trace
        self._room = room
        self.draining = False
        self.turn_of: FrameTurnOf = _not_tracked
        self.observers: list[Observe] = []
        self._observing = ""
        self.canaries: dict[str, CanaryTurns] = {}
        # Loads take seconds and wait for one another: other requests keep their threads.
        self._load_threads = ThreadPoolExecutor(_LOAD_THREADS, "model-control")
        self.cache, self.stop, self.close = registry.cache, registry.stop, registry.close
        self.availability, self.store_faults = registry.availability, registry.store_faults
        self.folder, self.versions = registry.folder, registry.versions

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._registry)

    def get(self, name: str, version: int | None = None) -> ServedModel:
        """Look a model up; Forbidden: the key of the request is not for it. As `Registry.get`."""
        _check_key(name)
        return self._registry.get(name, version)

    def find(self, name: str, version: int | None = None) -> ServedModel:
        """Look a model up that can answer now, as `get`, with the errors of `Registry.find`."""
        _check_key(name)
        return self._registry.find(name, version)

    def visible(self) -> Iterator[ServedModel]:
        """List the models that the client of the current request may know of."""
        return (model for model in self._registry if self._registry.sees(model.name))

    def index(self, ready: bool = False) -> list[IndexEntry]:
        """List the models of the repository that the client may see; see `Registry.index`."""
        return [one for one in self._registry.index(ready) if self._registry.sees(one.name)]

    @property
    def ready(self) -> bool:
        """True once the server takes requests."""
        return not self.reason

    @property
    def reason(self) -> str:
        """The reason why the server is not ready; empty when it is."""
        return "the server is stopping" if self.draining else self._registry.reason

    def metadata(self, model: ServedModel) -> dict[str, Any]:
        """Describe a model's versions, inputs and outputs for the v2 protocol."""
        return model_metadata(model, self._registry.versions(model.name))

    def current_version(self, model: ServedModel) -> dict[str, str]:
        """Tell which version was promoted; empty where the newest answers."""
        promoted = self._registry.promoted(model.name)
        return {} if promoted is None else {"current_version": str(promoted)}

    def image_outputs(self, model: ServedModel) -> dict[str, Any]:
        """List the tensors that images are answered with; empty for a model of tensors."""
        engine = model.engine
        if engine is None or engine.head is None or engine.preprocessor is None:
            return {}
        return {"image_outputs": image_outputs(engine.head, composite=bool(model.config.composing))}

    async def load(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model in a thread; raises as `Registry.load`."""
        call = CALL.get()
        holder = None if call is None else call.holder

        def work() -> None:
            if config is not None:
                check_weight(config.encode())
                if holder is not None:
                    _check_composing(holder, config)
            self._registry.load(name, config=config, files=files)

        await self._in_thread(work)

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model in a thread; raises as `Registry.unload`."""
        await self._in_thread(partial(self._registry.unload, name, dependents=dependents))

    async def load_version(self, name: str, version: int) -> None:
        """Load a version beside those that are served; raises as `Registry.load_version`."""
        await self._in_thread(partial(self._registry.load_version, name, version))

    async def unload_version(self, name: str, version: int) -> None:
        """Unload a version beside the others; raises as `Registry.unload_version`."""
        await self._in_thread(partial(self._registry.unload_version, name, version))

    async def follow(self, name: str, beside: int | None = None) -> bool:
        """Take over what has happened in a model's history, in a thread; as `Registry.follow`."""
        return await self._in_thread(partial(self._registry.follow, name, beside))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._load_threads, work)

    async def predict(
        self,
        model: ServedModel,
        version: int | None,
        images: Sequence[SentImage | FoveaError],
        options: PredictOptions,
        *,
        timeout_s: float | None = None,
        keep_pixels: bool = False,
        encode: Encode | None = None,
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
    ) -> Prediction:
        """Run a model on images.

        Args:
            model: from `get` or `find`.
            version: the version that the client named; None for the current one.
            images: an error stands for an image that could not be fetched, and is answered in its
                place.
            options: of the detector.
            timeout_s: work on the request stops after this.
            keep_pixels: return the upright images with the results.
            encode: writes the answer for one image, in the thread that computed it.
            request_id: as `InferRequest.id`.
            priority: as `InferRequest.priority`.
            timeout_us: as `InferRequest.timeout_us`.

        Raises:
            NotFound, ModelNotReady, QueueFull, ShuttingDown, DeadlineExceeded, InvalidRequest:
                of the request as a whole.
            OutOfOrder: with `track`, the frame does not follow the last of its stream.
        """
        if version is None and (canary := self.canaries.get(model.name)) is not None:
            return await canary.ask(
                model,
                lambda one: self.predict(
                    *(one, one.version, images, options),
                    timeout_s=timeout_s,
                    keep_pixels=keep_pixels,
                    encode=encode,
                    request_id=request_id,
                    priority=priority,
                    timeout_us=timeout_us,
                ),
            )
        started = time.monotonic()
        if model.state is not State.READY:
            # It was replaced while the request was arriving: the successor answers.
            model = self._registry.get(model.name, version)
        scheduler, engine = model.scheduler, model.engine
        if engine is None or engine.preprocessor is None:
            reason = f" ({engine.card.reason})" if engine else ""
            raise InvalidRequest(
                f"model '{model.name}' takes tensors, not images{reason}; see `fovea inspect` for "
                "its inputs"
            )
        charge(model, images.__len__)
        reason = "" if engine.head else engine.card.reason
        words = Vocabulary(options.labels or engine.labels, engine.card.skeleton, reason)
        if options.labels is None:
            resolved = _resolved(model, engine, options)
        else:
            # A network reads the texts.
            reading = asyncio.to_thread(_resolved, model, engine, options)
            resolved = await _within(timeout_s, reading)
        turn = self.turn_of(model.name, options, len(images)) if options.track is not None else None
        write: Write | None = encode and (lambda result: encode(result, words, resolved))
        request = ImageRequest(
            [image for image in images if not isinstance(image, FoveaError)],
            without_track(resolved) if turn else resolved,
            keep_pixels or (turn is not None and turn.keeps_pixels),
            write if turn is None else None,
            request_id,
            priority,
            timeout_us,
            self._trace.sample(model.name, model.version, request_id),
            partial(self._room.place, CLIENT.get()),
        )
        answers: Iterator[ImageResult | FoveaError] = iter(())
        with turn or nullcontext():
            if request.images:
                answers = iter(await _within(timeout_s, scheduler.predict(request)))
            results = [one if isinstance(one, FoveaError) else next(answers) for one in images]
            if turn is not None:
                await turn.identify(results)
        if request.trace is not None:
            request.trace.save()
        if turn is not None and write is not None:
            await asyncio.to_thread(_write, results, write)
        if (span := SPAN.get()) is not None:
            record_images(span, model, engine, results, started)
        prediction = Prediction(
            model=model.name,
            version=model.version,
            task=task_with(options, model.task),
            words=words,
            images=tuple(results),
            timing_ms=_slowest(results) | {"total": 1e3 * (time.monotonic() - started)},
            stages_ms=_of_pipeline(results),
            options=request.options,
        )
        self._observed(model, images, prediction)
        return prediction

    def _observed(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        for observe in self.observers:
            try:
                observe(model, images, prediction)
            except Exception as error:  # the answer is right, whoever looks at it
                if self._observing != (fault := f"{observe}: {error!r}"):
                    self._observing = fault
                    log.exception("an answer of model %s could not be looked at", model.name)

    async def read_texts(
        self,
        model: ServedModel,
        version: int | None,
        texts: Sequence[str],
        *,
        timeout_s: float | None = None,
    ) -> list[Embedding]:
        """Return the vectors of texts, by a model from `get` or `find` of this `version`.

        Raises as `predict`, and InvalidOption where the model reads no texts.
        """
        if model.state is not State.READY:
            model = self._registry.get(model.name, version)
        model.check_ready()
        engine = model.engine
        if engine is None:
            raise InvalidRequest(f"model '{model.name}' takes tensors, and reads no texts")
        words = engine.require_words()
        charge(model, texts.__len__)
        return await _within(timeout_s, asyncio.to_thread(words.read, texts))

    @asynccontextmanager
    async def drawing(self, pixels: Array) -> AsyncIterator[None]:
        """Wait until an image may be drawn on and encoded, which takes as much as decoding it."""
        place = self._room.place_for(CLIENT.get(), _DRAWING * pixels.nbytes)
        async with place or nullcontext():
            yield

    def check_ready(self, name: str | None = None) -> None:
        """Raise an error if the server, or one of its models, cannot take requests."""
        if name is None:
            if reason := self.reason:
                raise Unavailable(reason)
            return
        try:
            model = self.get(name)
            if model.state is State.READY:
                return
            reason = model.reason
        except ModelNotReady as error:
            reason = str(error).removeprefix(f"model '{name}': ")
        raise ModelNotReady(f"model '{name}': {self.reason_told(name, reason)}")

    def reason_told(self, name: str, reason: str) -> str:
        """Return why a model is not ready, as far as the client of the request may know it."""
        return reason if self._registry.sees(name) else "it is not ready; the server's log says why"

    def models(self) -> ModelList:
        """List every model that is served, or could not be loaded."""
        return model_list(self._registry)

    def model(self, name: str, version: int | None = None) -> Model:
        """Describe a model in full; raises as `get`."""
        return model_document(self._registry, name, version)

    def statistics(self, name: str, durations: dict[str, int]) -> ModelStatistics:
        """Report the counters of a model's ready versions, and durations; raises as `get`."""
        self.get(name)
        ready = [m for m in self._registry if m.name == name and m.state is State.READY]
        ready.sort(key=lambda model: model.version)
        counted = [
            VersionStatistics.model_validate(
                {**version_statistics(model), "pending": model.scheduler.pending}
            )
            for model in ready
        ]
        return ModelStatistics(name=name, durations=durations, versions=counted)

    def v2_statistics(self, name: str | None, version: int | None) -> dict[str, Any]:
        """Report counters as the v2 protocol; raises as `statistics_json`."""
        return statistics_json(self.visible(), name, version)

    def infer(
        self, model: ServedModel, request: InferRequest, reservation: Reservation
    ) -> Coroutine[Any, Any, InferResponse]:
        """Run a model, as `find` returned it, on tensors.

        A large answer is counted in `reservation` from before it is computed; the caller releases
        it when the answer is written, or there is none.

        Raises:
            NotFound, InvalidRequest, QueueFull, ModelNotReady, ShuttingDown, InferenceFailed:
                in Triton's words where it has them.
        """
        pinned = request.model_version is not None
        if not pinned and request.sequence_id and not request.sequence_start:
            model = self._registry.of_sequence(model, request.sequence_id)
        if pinned or (canary := self.canaries.get(model.name)) is None:
            return self._infer(model, request, reservation)

        def infer(one: ServedModel) -> Coroutine[Any, Any, InferResponse]:
            return self._infer(one, replace(request, model_version=one.version), reservation)

        return canary.ask(model, infer)

    async def _infer(
        self, model: ServedModel, request: InferRequest, reservation: Reservation
    ) -> InferResponse:
        if model.state is not State.READY:
            # It was replaced while the request was arriving: the successor answers.
            model = self.find(request.model_name, request.model_version)
        if (answer := answer_of_bytes(self, model, request)) is not None:
            response = await answer
            _correct(reservation, response)
            return response
        charge(model, lambda: rows_of(model, request))
        classes = {one.name: one.classification for one in request.outputs if one.classification}
        if classes:
            check_classes(model, classes)
        request.trace = self._trace.sample(model.name, model.version, request.id)
        if (span := SPAN.get()) is not None:
            request.spans, arrived = [], time.monotonic()
        if (size := model.expected_bytes(request.inputs)) >= _COUNTED:
            await reservation.reserve(size, 1e-6 * request.timeout_us)
        response = await model.scheduler.infer(request)
        model.answer_size.learn(response.outputs)
        if span is not None:
            record_tensors(span, model, request, arrived)
        if classes:
            await replace_by_classes(response, classes, model)
        _correct(reservation, response)
        if request.trace is not None:
            request.trace.save()
        return response


def _correct(reservation: Reservation, response: InferResponse) -> None:
    """Count the bytes of a large answer, in place of the bytes that were expected."""
    size = 0
    for tensor in response.outputs:
        size += tensor.array.nbytes
    if reservation.size or size >= _COUNTED:
        reservation.resize(size)


async def _within(timeout_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    if timeout_s is None:
        return await work
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(
            f"no answer within {timeout_s:g} s; allow more time or send less"
        ) from None


def _write(results: Sequence[ImageResult | FoveaError], write: Write) -> None:
    for result in results:
        if isinstance(result, ImageResult):
            result.encoded = write(result)


def _not_tracked(model: str, options: PredictOptions, images: int) -> FrameTurn:
    raise InvalidRequest("no package of this server tracks objects: leave track out")


def _slowest(results: Sequence[ImageResult | FoveaError]) -> dict[str, float]:
    timings = [r.timing for r in results if isinstance(r, ImageResult)] or [Timing()]
    return {stage: 1e3 * max(getattr(t, stage) for t in timings) for stage in _STAGES}


def _of_pipeline(results: Sequence[ImageResult | FoveaError]) -> dict[str, float]:
    stages: dict[str, float] = {}
    for result in results:
        if isinstance(result, ImageResult) and result.stages is not None:
            for name, seconds in result.stages.items():
                stages[name] = max(stages.get(name, 0.0), 1e3 * seconds)
    return stages


def _resolved(model: ServedModel, engine: Engine, options: PredictOptions) -> PredictOptions:
    try:
        return engine.resolve(options)
    except InvalidOption as error:
        if not (stages := model.config.composing):
            raise
        raise error.with_text(
            f"stage '{next(iter(stages))}': {error}; options of a request are for this stage of "
            f"'{model.name}', and the other stages have theirs in its file"
        ) from error


def _check_key(name: str) -> None:
    """Raise Forbidden if the key of the current request is not for a model of this name.

    Probes of health need no key, so that any key will do.
    """
    call = CALL.get()
    if call is not None and call.holder is not None and not call.probe:
        call.holder.check_model(name)


def _check_composing(holder: Holder, config: str) -> None:
    """Raise Forbidden if a configuration runs models that its sender may not use."""
    # The registry says what is wrong with one that cannot be read.
    with suppress(InvalidModel):
        for name in parse_config(config).composing:
            holder.check_model(name)
