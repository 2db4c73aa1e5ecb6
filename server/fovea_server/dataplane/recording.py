"""Notes for a request that is traced what ran, and how long each stage took.

Only durations are known, and they are laid end to end from the arrival, in the order of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from fovea_engines.engine import Engine
from fovea_preprocess.errors import FoveaError
from fovea_server.models.model import ServedModel
from fovea_server.tensors.image_messages import ImageResult
from fovea_server.tensors.messages import InferRequest
from fovea_server.traffic.spans import Attributes, RequestSpan, Stage

_STAGES = ("queue", "decode", "letterbox", "infer", "postprocess")
# Images for another device are decoded before they wait for their batch.
_AHEAD = ("decode", "letterbox", "queue", "infer", "postprocess")
_OF_TENSORS = ("queue", "input", "infer", "output")


def record_images(
    span: RequestSpan,
    model: ServedModel,
    engine: Engine,
    results: Sequence[ImageResult | FoveaError],
    arrived: float,
) -> None:
    """Note the stages of each image."""
    _describe(span, model)
    span.attributes["fovea.images"] = len(results)
    order = _AHEAD if engine.session.offloads else _STAGES
    for index, result in enumerate(results):
        # An answer of the cache has no batch, and one of tiles has several.
        if isinstance(result, ImageResult):
            seconds = [getattr(result.timing, stage) for stage in order]
            _lay(span, order, seconds, arrived, result.batch, index)


def record_tensors(
    span: RequestSpan, model: ServedModel, request: InferRequest, arrived: float
) -> None:
    """Note the stages of a request for tensors."""
    _describe(span, model)
    for times in request.spans or ():
        _lay(span, _OF_TENSORS, [ns / 1e9 for ns in times], arrived, request.batch)


def _describe(span: RequestSpan, model: ServedModel) -> None:
    span.attributes["fovea.version"] = str(model.version)
    # An ensemble has no engine of its own.
    if (engine := model.engine) is not None:
        span.attributes["fovea.backend"] = engine.card.backend
        span.attributes["fovea.precision"] = engine.card.precision


def _lay(
    span: RequestSpan,
    names: Sequence[str],
    seconds: Sequence[float],
    arrived: float,
    batch: int,
    image: int | None = None,
) -> None:
    if batch:
        span.attributes["fovea.batch"] = max(batch, int(span.attributes.get("fovea.batch", 0)))
    if not any(seconds):
        return
    about: Attributes = {} if image is None else {"fovea.image": image}
    for name, each in zip(names, seconds, strict=True):
        span.stages.append(Stage(name, arrived, each, about))
        arrived += each
