"""Documents and errors of the v2 protocol that HTTP and gRPC share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fovea_preprocess.errors import InvalidRequest, Unsupported
from fovea_server.models.model import ServedModel, State
from fovea_server.observability.model_statistics import Duration
from fovea_server.settings import Settings
from fovea_server.tensors.signature import ModelTensor

# Version of Triton that Fovea reports. Clients compare this version.
VERSION = "2.51.0"
_EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def refuse_decoupled(model: ServedModel, caller: str) -> None:
    """Raise Unsupported if a model is decoupled, because it may send any number of responses.

    `caller` is Triton's name of the interface that expects one response.
    """
    if model.config.model_transaction_policy.decoupled:
        raise Unsupported(f"{caller} doesn't support models with decoupled transaction policy")


def refuse_repository(name: str | None) -> None:
    """Raise Unsupported if a request names a repository. Fovea's only repository has no name."""
    if name:
        raise Unsupported("'repository_name' specification is not supported")


def server_metadata(settings: Settings) -> dict[str, Any]:
    """Return the name, version and protocol extensions of the server."""
    return {"name": settings.id, "version": VERSION, "extensions": list(_EXTENSIONS)}


def model_metadata(model: ServedModel, versions: Iterable[int]) -> dict[str, Any]:
    """Return the inputs, outputs and served versions of a model."""
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": model.config.platform or model.config.backend,
        "inputs": [_tensor(tensor) for tensor in model.signature.inputs],
        "outputs": [_tensor(tensor) for tensor in model.signature.outputs],
    }


def _tensor(tensor: ModelTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def statistics_json(
    models: Iterable[ServedModel], name: str | None, version: int | None
) -> dict[str, Any]:
    """Return the counters of ready models.

    A name or version of None selects all models or versions.

    Raises:
        InvalidRequest: the model or version does not exist; the text is Triton's.
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
    """Return the counters of one version of a model."""
    statistics = model.statistics
    durations = {of: value for of, value in vars(statistics).items() if isinstance(value, Duration)}
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {of: asdict(duration) for of, duration in durations.items()},
        "response_stats": {},
        "batch_stats": [
            {"batch_size": rows, **asdict(batch)}
            for rows, batch in sorted(statistics.batches.copy().items())
        ],
        "memory_usage": [],
    }
