"""The inputs and outputs of a model, as clients see them, and their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from fovea_engines.repository.model_config import ConfigTensor, ModelConfig, ModelInput
from fovea_server.tensors.datatypes import protocol_name


def shape_text(shape: Iterable[int]) -> str:
    """Write a shape as Triton's messages do: "[-1,4]"."""
    return f"[{','.join(map(str, shape))}]"


def shapes_match(a: Sequence[int], b: Sequence[int]) -> bool:
    """Compare two shapes; -1 matches any size."""
    return len(a) == len(b) and all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One input or output.

    Attributes:
        datatype: the protocol's name.
        shape: -1 for any size; the batch comes first where the model has one.
        reshape: the engine's shape without the batch; None for the same.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Inputs and outputs in the order of the configuration.

    Attributes:
        inputs: without the control inputs of sequences.
        max_batch_size: 0 without a batch dimension.
    """

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    max_batch_size: int

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """Read a complete configuration."""
        batched = config.max_batch_size > 0
        return cls(
            tuple(_tensor(tensor, batched) for tensor in config.input),
            tuple(_tensor(tensor, batched) for tensor in config.output),
            config.max_batch_size,
        )


def _tensor(tensor: ConfigTensor, batched: bool) -> ModelTensor:
    return ModelTensor(
        name=tensor.name,
        datatype=protocol_name(tensor.data_type),
        shape=(-1, *tensor.dims) if batched else tensor.dims,
        optional=isinstance(tensor, ModelInput) and tensor.optional,
        reshape=None if tensor.reshape is None else tensor.reshape.shape,
    )
