"""Writes the configuration of a model as the JSON document of Triton's HTTP endpoint."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fovea_engines.repository.config_pbtxt import config_message
from fovea_engines.repository.model_config import ModelConfig

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message


def config_json(config: ModelConfig) -> bytes:
    """Write a configuration as Triton's HTTP endpoint does: JSON, UTF-8.

    The form differs from the JSON that protobuf defines: 64-bit integers are numbers, all fields
    without presence are written even if they have their default value, and the fields are in the
    order of the schema.
    """
    return orjson.dumps(_object(config_message(config)))


def _object(message: Message) -> dict[str, Any]:
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


def _key(key: bool | int | str) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: FieldDescriptor, value: object) -> object:
    if field.message_type is not None:
        return _object(value)
    if field.enum_type is not None:
        # protobuf accepts any number for an enum. A number without a name is written as a number.
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type == field.TYPE_FLOAT and isinstance(value, float):
        # The shortest decimal number that gives the same float32, for example 0.1 and not
        # 0.10000000149.
        return float(str(np.float32(value)))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
