"""The metadata of the server and of models in the v2 protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fovea_server.tensors.signature import ModelTensor

if TYPE_CHECKING:
    from fovea_server.dataplane.service import Service
    from fovea_server.models.model import ServedModel

# The version of Triton that these answers follow; clients compare versions.
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


def server_metadata(service: Service) -> dict[str, Any]:
    """Describe the server: name, version and extensions of the protocol."""
    return {"name": service.settings.id, "version": VERSION, "extensions": list(_EXTENSIONS)}


def model_metadata(model: ServedModel, versions: Iterable[int]) -> dict[str, Any]:
    """Describe a model: its inputs, outputs and the versions in service."""
    config, signature = model.config, model.signature
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": config.platform or config.backend,
        "inputs": [_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_tensor(tensor) for tensor in signature.outputs],
    }


def _tensor(tensor: ModelTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
