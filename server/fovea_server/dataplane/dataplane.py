"""Runs models: predictions for images, embeddings of texts, inference on tensors.

HTTP, gRPC and cameras run engines only through this interface. The data plane also charges API keys
for images, and adds the stages of a request to the request's trace span.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from fovea_engines.engine import Engine
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions, choose_task, drop_track
from fovea_engines.session import Array
from fovea_preprocess.errors import DeadlineExceeded, FoveaError, InvalidOption, InvalidRequest
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.canaries import Canaries
from fovea_server.dataplane.decode_limiter import DecodeLimiter
from fovea_server.dataplane.encoded_tensors import answer_of_bytes
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Prediction, PredictRequest
from fovea_server.dataplane.tiles import Tiles
from fovea_server.dataplane.top_classes import check_classes, replace_by_classes
from fovea_server.models.model import ServedModel, State
from fovea_server.observability.model_statistics import longest
from fovea_server.observability.spans import SPAN, Attributes, RequestSpan, Stage
from fovea_server.tensors.messages import (
    ImageRequest,
    ImageResult,
    InferRequest,
    InferResponse,
    SentImage,
)
from fovea_server.tracking.tracks import Tracks, TrackTurn
from fovea_server.traffic.call import CALL, CLIENT
from fovea_server.traffic.triton_trace import TraceSettings

log = logging.getLogger(__name__)

# Size in bytes. Larger responses are counted in the memory budget before they are computed.
_COUNTED = 65_536
# Number of bytes that drawing takes for each byte of pixels (measured): the original image, a copy,
# and the encoded image.
_DRAWING = 4

T = TypeVar("T")

Write = Callable[[ImageResult], bytes]


class Observer(Protocol):
    """Receives images and their predictions on the event loop, before the response is sent."""

    def observe(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        """Observe the prediction of a request.

        This method must be fast, and must not change its arguments.
        """


class DataPlane:
    """Answers requests with the models of a server.

    Args:
        models: models of the server.
        trace: trace settings, which choose the requests whose timestamps are recorded.
        room: limit for the images that are decoded at once.
        tiles: object that runs models on tiles of images.
        tracks: trackers, which assign track IDs to objects.
        canaries: canaries that are running.
        observers: objects that receive every prediction for images.
    """

    def __init__(
        self,
        models: Models,
        trace: TraceSettings,
        room: DecodeLimiter,
        tiles: Tiles,
        tracks: Tracks,
        canaries: Canaries,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.models = models
        self._trace, self._room, self._tiles, self._tracks = trace, room, tiles, tracks
        self._canaries, self._observers = canaries, observers
        self._fault = ""

    def predict(self, request: PredictRequest) -> Coroutine[Any, Any, Prediction]:
        """Run a model on images.

        If a single image fails, the prediction contains an error in place of its result.

        Raises:
            NotFound: the model or version does not exist.
            ModelNotReady: the model cannot respond now.
            QueueFull: the queue of the model is full.
            ShuttingDown: the server is stopping.
            DeadlineExceeded: the request exceeded its timeout.
            InvalidRequest: the request is invalid.
            OutOfOrder: the option `track` is set, and a later frame of the stream was tracked
                before.
        """
        pinned = request.version is not None
        if pinned or (canary := self._canaries.get(request.model.name)) is None:
            return self._predict(request)

        def predict(one: ServedModel) -> Coroutine[Any, Any, Prediction]:
            return self._predict(replace(request, model=one, version=one.version))

        return canary.ask(request.model, predict)

    async def _predict(self, request: PredictRequest) -> Prediction:
        started_ns, model, options = time.monotonic_ns(), request.model, request.options
        if model.state is not State.READY:
            # If the model was replaced while the request arrived, use the model that replaced it.
            model = self.models.get(model.name, request.version)
        # Access the scheduler before the engine. If the model is not loaded, its error has the
        # reason.
        scheduler, engine = model.scheduler, _image_engine(model)
        _charge(model, request.images.__len__)
        vocabulary = engine.vocabulary(options.labels)
        if options.labels is None:
            resolved = _resolved(model, engine, options)
        else:
            # Use a thread, because a neural network encodes the label texts, which takes time.
            reading = asyncio.to_thread(_resolved, model, engine, options)
            resolved = await _within(request.timeout_s, reading)
        turn = None
        if options.track is not None:
            turn = self._tracks.turn_of(model.name, options, len(request.images))
        encode = request.encode
        write: Write | None = encode and (lambda result: encode(result, vocabulary, resolved))
        run = self._image_request(request, model, engine, resolved, turn, write)
        answers: Iterator[ImageResult | FoveaError] = iter(())
        with turn or nullcontext():
            if run.images:
                answers = iter(await _within(request.timeout_s, scheduler.predict(run)))
            results = [
                one if isinstance(one, FoveaError) else next(answers) for one in request.images
            ]
            if turn is not None:
                await turn.identify(results)
        if run.trace is not None:
            run.trace.save()
        if turn is not None and write is not None:
            await asyncio.to_thread(_write, results, write)
        if (span := SPAN.get()) is not None:
            _record_images(span, model, engine, results, started_ns)
        prediction = Prediction(
            model=model.name,
            version=model.version,
            task=choose_task(options, model.task),
            vocabulary=vocabulary,
            images=tuple(results),
            times=longest(each.times for each in results if isinstance(each, ImageResult)),
            total_ns=time.monotonic_ns() - started_ns,
            stages=_pipeline_stages(results),
            options=run.options,
        )
        self._observed(model, request.images, prediction)
        return prediction

    def _image_request(
        self,
        request: PredictRequest,
        model: ServedModel,
        engine: Engine,
        options: PredictOptions,
        turn: TrackTurn | None,
        write: Write | None,
    ) -> ImageRequest:
        """Make the request for the images that are not errors.

        Track IDs are added to the results later.
        """
        cut = None
        if request.options.tile is not None or engine.makes_images:
            cut = self._tiles.cut_of(model.name, engine, request.options)
        return ImageRequest(
            [image for image in request.images if not isinstance(image, FoveaError)],
            drop_track(options) if turn else options,
            keep_pixels=request.keep_pixels or (turn is not None and turn.keeps_pixels),
            encode=write if turn is None else None,
            id=request.request_id,
            priority=request.priority,
            timeout_us=request.timeout_us,
            trace=self._trace.sample(model.name, model.version, request.request_id),
            place_of=partial(self._room.place, CLIENT.get()),
            client=CLIENT.get(),
            cut=cut,
        )

    def _observed(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        for observer in self._observers:
            try:
                observer.observe(model, images, prediction)
            except Exception as error:  # an observer's error must not fail the request
                if self._fault != (fault := f"{observer}: {error!r}"):
                    self._fault = fault
                    log.exception("monitoring failed for a response of model %s", model.name)

    async def read_texts(
        self,
        model: ServedModel,
        version: int | None,
        texts: Sequence[str],
        *,
        timeout_s: float | None = None,
    ) -> list[Embedding]:
        """Return the embeddings of texts.

        Args:
            model: model from `Models.get` or `Models.find`.
            version: version that the client named; None for the current version.
            texts: texts to encode.
            timeout_s: timeout in seconds; None for no timeout.

        Raises:
            InvalidOption: the model has no text encoder.
            InvalidRequest: the model takes only tensors.
            DeadlineExceeded: the request exceeded `timeout_s`.
        """
        if model.state is not State.READY:
            model = self.models.get(model.name, version)
        model.check_ready()
        engine = model.engine
        if engine is None:
            raise InvalidRequest(f"model '{model.name}' accepts tensors, not texts")
        words = engine.require_words()
        _charge(model, texts.__len__)
        return await _within(timeout_s, asyncio.to_thread(words.read, texts))

    @asynccontextmanager
    async def drawing(self, pixels: Array) -> AsyncIterator[None]:
        """Wait until an image may be drawn on and encoded.

        This needs memory, so `room` limits it like decoding.
        """
        place = self._room.place_for(CLIENT.get(), _DRAWING * pixels.nbytes)
        async with place or nullcontext():
            yield

    def infer(
        self, model: ServedModel, request: InferRequest, reservation: Reservation
    ) -> Coroutine[Any, Any, InferResponse]:
        """Run a model on tensors. If Triton reports the same error, the error text is Triton's.

        Args:
            model: model from `Models.find`.
            request: request with the input tensors.
            reservation: counts the bytes of a large response before it is computed. The caller
                releases them after it has written the response or the request has failed.

        Raises:
            NotFound: the model or version does not exist.
            InvalidRequest: the request does not fit the model.
            QueueFull: the queue of the model or the memory budget is full.
            ModelNotReady: the model cannot respond now.
            ShuttingDown: the server is stopping.
            InferenceFailed: the engine failed.
        """
        pinned = request.model_version is not None
        if not pinned and request.sequence_id and not request.sequence_start:
            model = self.models.of_sequence(model, request.sequence_id)
        if pinned or (canary := self._canaries.get(model.name)) is None:
            return self._infer(model, request, reservation)

        def infer(one: ServedModel) -> Coroutine[Any, Any, InferResponse]:
            return self._infer(one, replace(request, model_version=one.version), reservation)

        return canary.ask(model, infer)

    async def _infer(
        self, model: ServedModel, request: InferRequest, reservation: Reservation
    ) -> InferResponse:
        if model.state is not State.READY:
            # If the model was replaced while the request arrived, use the model that replaced it.
            model = self.models.find(request.model_name, request.model_version)
        if (answer := answer_of_bytes(self, model, request)) is not None:
            response = await answer
            _correct_reservation(reservation, response)
            return response
        _charge(model, lambda: _rows_of(model, request))
        classes = {one.name: one.classification for one in request.outputs if one.classification}
        if classes:
            check_classes(model, classes)
        request.client = CLIENT.get()
        request.trace = self._trace.sample(model.name, model.version, request.id)
        if (span := SPAN.get()) is not None:
            request.times, arrived_ns = [], time.monotonic_ns()
        if (size := model.expected_bytes(request.inputs)) >= _COUNTED:
            await reservation.reserve(size, 1e-6 * request.timeout_us)
        response = await model.scheduler.infer(request)
        model.answer_size.learn(response.outputs)
        if span is not None:
            _record_tensors(span, model, request, arrived_ns)
        if classes:
            await replace_by_classes(response, classes, model)
        _correct_reservation(reservation, response)
        if request.trace is not None:
            request.trace.save()
        return response


def _image_engine(model: ServedModel) -> Engine:
    engine = model.engine
    if engine is None or engine.preprocessor is None:
        reason = f" ({engine.card.reason})" if engine else ""
        raise InvalidRequest(
            f"model '{model.name}' accepts tensors, not images{reason}: see `fovea inspect` for "
            "its inputs"
        )
    return engine


def _resolved(model: ServedModel, engine: Engine, options: PredictOptions) -> PredictOptions:
    try:
        return engine.resolve(options)
    except InvalidOption as error:
        if not (stages := model.config.composing):
            raise
        raise error.with_text(
            f"stage '{next(iter(stages))}': {error}; request options apply only to this first "
            f"stage of '{model.name}': set the options of other stages in pipeline.toml"
        ) from error


async def _within(timeout_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    if timeout_s is None:
        return await work
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(
            f"no response within {timeout_s:g} s: set a longer timeout, or send less data"
        ) from None


def _write(results: Sequence[ImageResult | FoveaError], write: Write) -> None:
    for result in results:
        if isinstance(result, ImageResult):
            result.encoded = write(result)


def _correct_reservation(reservation: Reservation, response: InferResponse) -> None:
    """Replace the expected size of a large response in the memory budget by its actual size."""
    size = 0
    for tensor in response.outputs:
        size += tensor.array.nbytes
    if reservation.size or size >= _COUNTED:
        reservation.resize(size)


def _charge(model: ServedModel, count: Callable[[], int]) -> None:
    """Charge the API key of the current request for images. A request without a key is free.

    Raises:
        Forbidden: the API key does not allow this model. For compatible APIs of other software, the
            server may have chosen the model itself.
        RateLimited: the images exceed the rate limit or the quota of the API key.
    """
    call = CALL.get()
    if call is not None and call.principal is not None:
        call.principal.check_model(model.name)
        images = count()
        paid = min(images, call.paid)
        call.paid -= paid
        if due := images - paid:
            call.principal.charge(due)
            call.images += due


# Largest number of images that a request is charged for, if the model has no batch limit.
_MAX_ROWS = 1024


def _rows_of(model: ServedModel, request: InferRequest) -> int:
    """Return the number of images in a request for tensors. The shapes need not be checked yet."""
    most = model.signature.max_batch_size
    sizes = {tensor.name: tensor.shape for tensor in model.signature.inputs}
    rows = [
        tensor.shape[0]
        for tensor in request.inputs
        # If the configuration has no batch dimension, the first dimension counts only if its size
        # is variable.
        if tensor.shape and (most or sizes.get(tensor.name, ())[:1] == (-1,))
    ]
    return max(1, min(max(rows, default=1), most or _MAX_ROWS))


def _record_images(
    span: RequestSpan,
    model: ServedModel,
    engine: Engine,
    results: Sequence[ImageResult | FoveaError],
    arrived_ns: int,
) -> None:
    """Add the stages of each image to a trace span."""
    _describe_span(span, model)
    span.attributes["fovea.images"] = len(results)
    for index, result in enumerate(results):
        # Results from the cache, and results from tiles in several batches, have no batch size (0).
        if isinstance(result, ImageResult):
            stages = result.times.of_image()
            # If inference runs on another device (`offloads`), images are decoded before they wait
            # for a batch.
            if not engine.session.offloads:
                stages = {"queue": result.times.queue} | stages
            _add_stages(span, stages, arrived_ns, result.batch, {"fovea.image": index})


def _record_tensors(
    span: RequestSpan, model: ServedModel, request: InferRequest, arrived_ns: int
) -> None:
    """Add the stages of a request for tensors to a trace span."""
    _describe_span(span, model)
    for times in request.times or ():
        _add_stages(span, times.of_tensors(), arrived_ns, request.batch, {})


def _describe_span(span: RequestSpan, model: ServedModel) -> None:
    span.attributes["fovea.version"] = str(model.version)
    # An ensemble has no engine; its models have engines.
    if (engine := model.engine) is not None:
        span.attributes["fovea.backend"] = engine.card.backend
        span.attributes["fovea.precision"] = engine.card.precision


def _add_stages(
    span: RequestSpan, stages: Mapping[str, int], at_ns: int, batch: int, about: Attributes
) -> None:
    if batch:
        span.attributes["fovea.batch"] = max(batch, int(span.attributes.get("fovea.batch", 0)))
    if not any(stages.values()):
        return
    for name, ns in stages.items():
        span.stages.append(Stage(name, at_ns, ns, about))
        at_ns += ns


def _pipeline_stages(results: Sequence[ImageResult | FoveaError]) -> dict[str, int]:
    stages: dict[str, int] = {}
    for result in results:
        if isinstance(result, ImageResult) and result.stages is not None:
            for name, ns in result.stages.items():
                stages[name] = max(stages.get(name, 0), ns)
    return stages
