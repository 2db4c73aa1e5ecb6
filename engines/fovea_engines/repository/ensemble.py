"""Reads the ensemble of a config.pbtxt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from fovea_engines.repository.model_config import tensor_spec
from fovea_engines.session import TensorSpec


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble.

    Attributes:
        version: None for the one that the model's version policy prefers.
        inputs: the model's tensor -> the ensemble's tensor.
        outputs: the model's tensor -> the ensemble's tensor.
    """

    model: str
    version: int | None
    inputs: dict[str, str]
    outputs: dict[str, str]

    @classmethod
    def of(cls, message: Any) -> Self:
        """Convert a step of the `ModelEnsembling` message."""
        version = message.model_version if message.model_version > 0 else None
        # Sorted, because the order of protobuf maps is undefined.
        inputs, outputs = sorted(message.input_map.items()), sorted(message.output_map.items())
        return cls(message.model_name, version, dict(inputs), dict(outputs))


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The inputs, outputs and models of an ensemble; tensors have the batch dimension.

    Attributes:
        max_batch: most rows of a request; 0 where the first dimension is no batch.
        inputs: tensors that clients send.
        outputs: tensors that clients receive.
        steps: the models, in the order of the file.
    """

    name: str
    max_batch: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[EnsembleStep, ...]

    @classmethod
    def of(cls, message: Any, name: str) -> Self:
        """Convert the `ModelConfig` message of the named model."""
        rows = message.max_batch_size

        def specs(tensors: Iterable[Any]) -> tuple[TensorSpec, ...]:
            return tuple(tensor_spec(tensor, rows) for tensor in tensors)

        steps = tuple(map(EnsembleStep.of, message.ensemble_scheduling.step))
        return cls(name, rows, specs(message.input), specs(message.output), steps)
