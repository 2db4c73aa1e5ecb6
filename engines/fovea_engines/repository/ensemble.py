"""The ensemble of a config.pbtxt, as `fovea inspect` shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from fovea_engines.repository.config_pbtxt import ModelConfig
from fovea_engines.repository.config_scheduling import EnsembleStep
from fovea_engines.repository.model_config import tensor_spec
from fovea_engines.session import TensorSpec


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The inputs, outputs and models of an ensemble.

    Attributes:
        max_batch: most rows of a request; 0 where the first dimension is no batch.
        inputs: tensors that clients send, with the batch dimension.
        outputs: tensors that clients receive, with the batch dimension.
        steps: the models, in the order of the file.
    """

    name: str
    max_batch: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[EnsembleStep, ...]

    @classmethod
    def of(cls, config: ModelConfig, name: str) -> Self:
        """Convert the configuration of the named model."""
        rows = config.max_batch_size
        inputs = tuple(tensor_spec(tensor, rows) for tensor in config.input)
        outputs = tuple(tensor_spec(tensor, rows) for tensor in config.output)
        return cls(name, rows, inputs, outputs, config.steps)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""
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
