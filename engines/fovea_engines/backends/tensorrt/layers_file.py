"""Reads and writes the file beside an engine that lists the engine's layers."""

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
    """A layer of a plan.

    Attributes:
        name: name of the ONNX node, or of the kernel into which several nodes were fused.
        type: type of the layer, e.g. "convolution".
        precision: element type of the computation, e.g. "int8".
        inputs: input tensors. If `PlanLayers.source` is "network", weights and shapes are omitted.
        outputs: output tensors.
    """

    name: str
    type: str
    precision: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class PlanLayers:
    """The layers of a plan, in the order of execution.

    Attributes:
        source: "engine" for the fused layers that the GPU runs; "network" for the layers before
            fusion.
        layers: layers of the plan.
    """

    source: Literal["engine", "network"]
    layers: tuple[PlanLayer, ...]

    def write(self, path: Path) -> None:
        """Write the layers to a JSON file."""
        write_file(path, json.dumps(self.to_json()).encode() + b"\n")

    def to_json(self) -> dict[str, Any]:
        """Convert the layers to dictionaries, lists, strings and numbers."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return value

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the layers from a file of `write`.

        Raises:
            NotFound: the file does not exist.
            InvalidModel: the file is damaged.
        """
        try:
            layers: Self = _ADAPTER.validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError as error:
            raise NotFound(
                f"{path} does not exist: build the engine again to create this list of layers"
            ) from error
        except ValidationError as error:
            raise InvalidModel(f"{path} is damaged: build the engine again") from error
        return layers


_ADAPTER: TypeAdapter[Any] = TypeAdapter(PlanLayers)
