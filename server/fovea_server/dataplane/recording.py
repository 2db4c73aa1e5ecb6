"""Notes for a request that is traced what ran, and how long each stage took.

Only durations are known, and they are laid end to end from the arrival, in the order of the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fovea_engines.engine import Engine
from fovea_preprocess.errors import FoveaError
from fovea_server.models.model import ServedModel
from fovea_server.observability.spans import Attributes, RequestSpan, Stage
from fovea_server.tensors.messages import ImageResult, InferRequest


def record_images(
    span: RequestSpan,
    model: ServedModel,
    engine: Engine,
    results: Sequence[ImageResult | FoveaError],
    arrived_ns: int,
) -> None:
    """Note the stages of each image."""
    _describe(span, model)
    span.attributes["fovea.images"] = len(results)
    for index, result in enumerate(results):
        # An answer of the cache has no batch, and one of tiles has several.
        if isinstance(result, ImageResult):
            stages = result.times.of_image()
            # Images for another device are decoded before they wait for their batch.
            if not engine.session.offloads:
                stages = {"queue": result.times.queue} | stages
            _lay(span, stages, arrived_ns, result.batch, {"fovea.image": index})


def record_tensors(
    span: RequestSpan, model: ServedModel, request: InferRequest, arrived_ns: int
) -> None:
    """Note the stages of a request for tensors."""
    _describe(span, model)
    for times in request.times or ():
        _lay(span, times.of_tensors(), arrived_ns, request.batch, {})


def _describe(span: RequestSpan, model: ServedModel) -> None:
    span.attributes["fovea.version"] = str(model.version)
    # An ensemble has no engine of its own.
    if (engine := model.engine) is not None:
        span.attributes["fovea.backend"] = engine.card.backend
        span.attributes["fovea.precision"] = engine.card.precision


def _lay(
    span: RequestSpan, stages: Mapping[str, int], at_ns: int, batch: int, about: Attributes
) -> None:
    if batch:
        span.attributes["fovea.batch"] = max(batch, int(span.attributes.get("fovea.batch", 0)))
    if not any(stages.values()):
        return
    for name, ns in stages.items():
        span.stages.append(Stage(name, at_ns, ns, about))
        at_ns += ns
