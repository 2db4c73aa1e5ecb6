"""The statistics extension: the counters of models as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fovea_preprocess.errors import InvalidRequest
from fovea_server.models.model import ServedModel, State
from fovea_server.statistics.model import Duration

_OF_REQUESTS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
_OF_BATCHES = ("compute_input", "compute_infer", "compute_output")


def statistics_json(
    models: Iterable[ServedModel], name: str | None, version: int | None
) -> dict[str, Any]:
    """Report the counters of models that are ready, sorted by name and version.

    For a name of None they are of all models, and for a version of None of all versions.

    Raises:
        InvalidRequest: there is no such model or version; Triton's text.
    """
    ready = [model for model in models if model.state is State.READY]
    found = [model for model in ready if name in (None, model.name)]
    if name is not None and not found:
        raise InvalidRequest(f"requested model '{name}' is not available")
    found = [model for model in found if version in (None, model.version)]
    if name is not None and not found:
        raise InvalidRequest(f"requested model version is not available for model '{name}'")
    found.sort(key=lambda model: (model.name, model.version))
    return {"model_stats": [version_statistics(model) for model in found]}


def version_statistics(model: ServedModel) -> dict[str, Any]:
    """Report the counters of one version of a model."""
    statistics = model.statistics
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {part: _duration(getattr(statistics, part)) for part in _OF_REQUESTS},
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                **{part: _duration(getattr(batch, part)) for part in _OF_BATCHES},
            }
            for rows, batch in sorted(statistics.batches.copy().items())
        ],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
