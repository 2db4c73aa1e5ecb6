"""The file beside an engine that lists its layers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from fovea_engines.repository.files import write_file
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel, NotFound

LAYERS_FILE = "layers.json"


@dataclass(frozen=True, slots=True)
class PlanLayer:
    """A layer, by the name of its ONNX node or of the kernel into which several were fused.

    Attributes:
        type: e.g. "convolution".
        precision: element type of its computation, e.g. "int8".
        inputs: for a network, without weights and shapes.
    """

    name: str
    type: str
    precision: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class PlanLayers:
    """The layers of a plan, in order: of the "engine", fused as they run, or of its "network"."""

    source: Literal["engine", "network"]
    layers: tuple[PlanLayer, ...]

    def write(self, path: Path) -> None:
        """Write the layers as JSON."""
        write_file(path, json.dumps(self.to_json()).encode() + b"\n")

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return value

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` has written; else `NotFound` or `InvalidModel`."""
        try:
            layers: Self = _ADAPTER.validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there: build the engine again to list layers") from error
        except ValidationError as error:
            raise InvalidModel(f"{path} is damaged: build the engine again") from error
        return layers


_ADAPTER: TypeAdapter[Any] = TypeAdapter(PlanLayers)
