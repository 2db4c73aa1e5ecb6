"""The metadata and configuration of the server and of models in the v2 protocol."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

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


def config_json(message: Any) -> bytes:
    """Write a `ModelConfig` message as Triton's HTTP endpoint does: JSON, UTF-8.

    Unlike proto3's own JSON: 64-bit numbers are numbers, every plain field is there, and fields
    come in the order in which the schema declares them.
    """
    return orjson.dumps(_object(message))


def _object(message: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            shown[field.name] = {_key(key): _value(kind, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            shown[field.name] = [_value(field, item) for item in value]
        else:
            shown[field.name] = _value(field, value)
    return shown


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _object(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.type == field.TYPE_FLOAT:
        # The shortest decimal that is the same float32: .1, not .10000000149.
        return float(str(np.float32(value)))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
