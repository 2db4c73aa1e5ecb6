"""Reads and writes config.pbtxt, Triton's configuration of a model, and its protobuf message."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from decimal import Decimal
from functools import cache
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.labels import LABELS_FILE
from fovea_engines.repository.model_config import (
    ConfigTensor,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
)
from fovea_engines.repository.model_config_scheduling import EnsembleStep
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.text import size_text

if TYPE_CHECKING:
    from google.protobuf.message import Message

CONFIG_FILE = "config.pbtxt"

DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "object": "TYPE_STRING",
    "bfloat16": "TYPE_BF16",
    **{
        f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
}
"""NumPy's name of an element type -> its name in config.pbtxt."""

# Largest size of a config.pbtxt in bytes. Parsing a file of this size takes a second, and other
# models have to wait during this time.
_LONGEST = 256 << 10


def config_text(card: EngineCard) -> str:
    """Return the text of the config.pbtxt that a build writes for an engine.

    Equal cards give equal texts.
    """
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config_message(config_of(card)))
    return text


def config_of(card: EngineCard) -> ModelConfig:
    """Return the configuration that a build writes beside an engine."""
    batched = card.max_batch if all(spec.shape[:1] == (-1,) for spec in card.inputs) else 0
    labels = "" if card.labels is None else LABELS_FILE
    return ModelConfig(
        name=card.name,
        platform="onnxruntime_onnx" if card.backend == "onnxruntime" else "",
        backend=card.backend,
        max_batch_size=batched,
        input=tuple(
            ModelInput(**make_tensor_fields(spec, batched=batched > 0)) for spec in card.inputs
        ),
        output=tuple(
            ModelOutput(**make_tensor_fields(spec, batched=batched > 0), label_filename=labels)
            for spec in card.outputs
        ),
        # Ultralytics' Triton client reads the names, stride and task from this parameter, as a
        # Python literal.
        parameters={"metadata": ModelParameter(repr(card.metadata))},
    )


def update_config(config: ModelConfig, before: EngineCard, after: EngineCard) -> ModelConfig:
    """Return a configuration for a new engine that replaces another engine.

    Fields that equal the build's defaults for the card `before` get the defaults for the card
    `after`. Fields that a user has edited stay unchanged.
    """
    old, new = config_of(before), config_of(after)
    make_tensor_fields = ("backend", "platform", "input", "output", "max_batch_size")
    same = [name for name in make_tensor_fields if getattr(config, name) == getattr(old, name)]
    changed: dict[str, Any] = {name: getattr(new, name) for name in same}
    return replace(config, **changed)


def read_config(path: Path) -> ModelConfig:
    """Read a config.pbtxt. If the file does not exist, return an empty configuration.

    Raises:
        InvalidModel: the file is not a valid configuration, or is too large.
    """
    from google.protobuf import text_format

    message = model_config_messages().ModelConfig()
    if path.is_file():
        if (size := path.stat().st_size) > _LONGEST:
            raise InvalidModel(
                f"{path} has {size_text(size)}, but a configuration can have at most "
                f"{size_text(_LONGEST)}: shorten it"
            )
        try:
            # The encoding utf-8-sig skips the byte order mark that Windows editors write.
            text_format.Parse(path.read_text(encoding="utf-8-sig"), message)
        except text_format.ParseError as error:
            reason = str(error).partition(" : ")[2].rstrip(".") or error
            raise InvalidModel(
                f"{path} is not a model configuration: line {error.GetLine()}, "
                f"column {error.GetColumn()}: {reason}"
            ) from error
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{path} is not a model configuration: {error}") from error
    return _read_message(message)


def parse_config(text: str) -> ModelConfig:
    """Parse the JSON configuration of a load request. Numbers may be strings.

    Raises:
        InvalidModel: the JSON is not a valid configuration.
    """
    from google.protobuf import json_format

    try:
        override = orjson.loads(text)
        if not isinstance(override, dict):
            raise InvalidModel("Invalid config override: it is not a JSON object")
        message = json_format.ParseDict(override, model_config_messages().ModelConfig())
    except (orjson.JSONDecodeError, json_format.ParseError) as error:
        raise InvalidModel(f"Invalid config override: {error}") from error
    return _read_message(message)


def config_message(config: ModelConfig) -> Message:
    """Return the protobuf message of a configuration.

    The message has all fields of `config.source`, and the fields that were changed since.
    """
    from google.protobuf import json_format

    changed = _json(config, orjson.loads(config.source))
    return json_format.ParseDict(changed, model_config_messages().ModelConfig())


def drop_version_policy(config: ModelConfig) -> bytes:
    """Return the fields of the file without the version policy, as JSON text.

    Two equal texts mean that only the version policy may differ.
    """
    source = orjson.loads(config.source)
    source.pop("version_policy", None)
    return orjson.dumps(source)


def fields_in_source(config: ModelConfig) -> frozenset[str]:
    """Return the paths of all fields in the file, e.g. "instance_group.count"."""
    return frozenset(_names(orjson.loads(config.source)))


def _names(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _names(item, prefix)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield prefix + name
            yield from _names(inner, f"{prefix}{name}.")


@cache
def model_config_messages() -> ModuleType:
    """Return the Python module with the protobuf class `ModelConfig`, the schema of config.pbtxt.

    The module is loaded by its path. An import by its name would run `tritonclient.grpc`, which
    imports grpc (0.27 s and 37 MB). The schema does not need grpc.
    """
    package = importlib.util.find_spec("tritonclient")
    assert package is not None, "tritonclient is a dependency"
    assert package.submodule_search_locations is not None, "tritonclient is a package"
    path = Path(next(iter(package.submodule_search_locations))) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _adapter() -> TypeAdapter[ModelConfig]:
    return TypeAdapter(ModelConfig)


def _read_message(message: Message) -> ModelConfig:
    from google.protobuf import json_format

    # Sort the keys, because the order of protobuf maps is undefined.
    source = json_format.MessageToJson(
        message, preserving_proto_field_name=True, indent=None, sort_keys=True
    )
    try:
        return replace(_adapter().validate_json(source), source=source)
    except ValidationError as error:
        # Only the number of an enum can be invalid here: protobuf has checked all other values, but
        # allows any number for an enum.
        first = error.errors()[0]
        raise InvalidModel(_unknown_number(first["input"], first["loc"])) from error


def _unknown_number(number: object, place: tuple[int | str, ...]) -> str:
    message = model_config_messages().ModelConfig.DESCRIPTOR
    names: list[str] = []
    *path, enum = place
    steps = iter(path)
    for name in steps:
        names.append(str(name))
        field = message.fields_by_name[name]
        message = field.message_type
        if field.is_repeated:
            next(steps)  # skips the index in a list, or the key of a map
        if message.GetOptions().map_entry:
            message = message.fields_by_name["value"].message_type
    known = ", ".join(message.fields_by_name[enum].enum_type.values_by_name)
    return f"{number} is not a {enum} of {'.'.join(names)}: use one of {known}"


def _json(value: Any, source: Any) -> Any:
    """Convert a value of a configuration to JSON types.

    Fields of `source` that the dataclass does not have are kept. Fields with default values are
    omitted, unless `source` has them.
    """
    if is_dataclass(value):
        known = source or {}
        changed = {
            field.name: _json(item, known.get(field.name))
            for field in fields(value)
            if field.name != "source"
            and ((item := getattr(value, field.name)) != _default(field) or field.name in known)
        }
        return known | changed
    if isinstance(value, Mapping):
        known = source or {}
        return {str(key): _json(item, known.get(str(key))) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_json(*pair) for pair in zip_longest(value, (source or ())[: len(value)])]
    if isinstance(value, float):
        # Convert to float32, because the schema has float32 values. Python's shortest text for the
        # largest float32 would be out of the range of float32.
        exact = float(np.float32(value))
        # protobuf reads the strings "NaN" and "Infinity".
        return exact if isfinite(exact) else str(Decimal(exact))
    return value


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def tensor_spec(tensor: ConfigTensor, max_batch: int) -> TensorSpec:
    """Convert an input or output. If `max_batch` is not 0, add the batch dimension."""
    kind = tensor.data_type
    dtype = next((dtype for dtype, name in DATA_TYPES.items() if name == kind), kind)
    return TensorSpec(tensor.name, dtype, (-1, *tensor.dims) if max_batch else tensor.dims)


def make_tensor_fields(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    """Return the fields of a tensor in config.pbtxt: name, data_type, dims and reshape.

    Triton does not allow an empty `dims`. For a tensor with one value per row, it requires `dims`
    [1], reshaped to [].
    """
    dims = spec.shape[1:] if batched else spec.shape
    reshape = ModelTensorReshape() if batched and not dims else None
    kind = DATA_TYPES[spec.dtype]
    return {"name": spec.name, "data_type": kind, "dims": dims or (1,), "reshape": reshape}


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The inputs, outputs and steps of an ensemble.

    Attributes:
        name: name of the ensemble.
        max_batch: largest batch size of a request; 0 if the first dimension is not the batch.
        inputs: tensors that clients send, including the batch dimension.
        outputs: tensors that clients receive, including the batch dimension.
        steps: steps in the order of the file. Each step runs one model.
    """

    name: str
    max_batch: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[EnsembleStep, ...]

    @classmethod
    def of(cls, config: ModelConfig, name: str) -> Self:
        """Return the ensemble that a model's configuration describes."""
        rows = config.max_batch_size
        inputs = tuple(tensor_spec(tensor, rows) for tensor in config.input)
        outputs = tuple(tensor_spec(tensor, rows) for tensor in config.output)
        return cls(name, rows, inputs, outputs, config.steps)

    def to_json(self) -> dict[str, Any]:
        """Convert the ensemble to dictionaries, lists, strings and numbers."""
        steps = [
            {
                "model": step.model_name,
                "version": step.version,
                "inputs": step.input_map,
                "outputs": step.output_map,
            }
            for step in self.steps
        ]
        return asdict(self) | {"steps": steps}
