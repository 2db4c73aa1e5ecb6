"""The inputs and outputs of a model, as clients see them: their shapes, the size of an answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from fovea_engines.repository.model_config import ConfigTensor, ModelConfig, ModelInput
from fovea_server.tensors.messages import InputTensor, OutputTensor
from fovea_server.tensors.wire import NUMPY, protocol_name


def shape_text(shape: Iterable[int]) -> str:
    """Write a shape as Triton's messages do: "[-1,4]"."""
    return f"[{','.join(map(str, shape))}]"


def shapes_match(a: Sequence[int], b: Sequence[int]) -> bool:
    """Compare two shapes; -1 matches any size."""
    return len(a) == len(b) and all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class ImageSides:
    """The sizes of images that an engine takes: multiples of `step`, and those of the largest.

    Attributes:
        largest: [3, height, width] or [height, width, 3].
    """

    largest: tuple[int, ...]
    step: int

    def __str__(self) -> str:
        return f"multiples of {self.step}, from {self.step} to those of {shape_text(self.largest)}"

    def hold(self, image: tuple[int, ...]) -> bool:
        """Return True if an image may have that shape."""
        return all(
            have == most or (0 < have < most and have % self.step == 0)
            for have, most in zip(image, self.largest, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One input or output.

    Attributes:
        datatype: the protocol's name.
        shape: -1 for any size; the batch comes first where the model has one.
        reshape: the engine's shape without the batch; None for the same.
        sides: of an image of several sizes; None for others.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    sides: ImageSides | None = None


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
    def of(
        cls,
        config: ModelConfig,
        sides: Mapping[str, ImageSides] | None = None,
        scalars: Collection[str] = (),
    ) -> Self:
        """Read a complete configuration.

        Args:
            config: of the model.
            sides: of inputs that are images of several sizes, by name.
            scalars: inputs and outputs without dimensions, which clients send and get as [1].
        """
        sides = sides or {}
        batched = config.max_batch_size > 0
        inputs = (_tensor(one, batched, sides.get(one.name)) for one in config.input)
        outputs = (_tensor(one, batched) for one in config.output)

        def in_engine(tensor: ModelTensor) -> ModelTensor:
            return replace(tensor, reshape=()) if tensor.name in scalars else tensor

        return cls(
            tuple(map(in_engine, inputs)), tuple(map(in_engine, outputs)), config.max_batch_size
        )


def _tensor(tensor: ConfigTensor, batched: bool, sides: ImageSides | None = None) -> ModelTensor:
    return ModelTensor(
        name=tensor.name,
        datatype=protocol_name(tensor.data_type),
        shape=(-1, *tensor.dims) if batched else tensor.dims,
        optional=isinstance(tensor, ModelInput) and tensor.optional,
        reshape=None if tensor.reshape is None else tensor.reshape.shape,
        sides=sides,
    )


class AnswerSize:
    """The bytes that an answer will have, before it is computed.

    Each output is expected as its signature says; one whose size varies, as it was the last time.
    """

    def __init__(self, signature: ModelSignature) -> None:
        self._most_rows = signature.max_batch_size
        self._fixed = 0
        self._varying: dict[str, int] = {}
        for tensor in signature.outputs:
            dims = tensor.shape[1:] if self._most_rows else tensor.shape
            if -1 in dims or tensor.datatype == "BYTES":
                self._varying[tensor.name] = 0
            else:
                self._fixed += prod(dims) * NUMPY[tensor.datatype].itemsize

    def expected(self, inputs: Sequence[InputTensor]) -> int:
        """Return the bytes of all outputs for these inputs, which nobody has checked yet."""
        size = self._fixed + sum(self._varying.values())
        return size * self._rows(inputs[0].shape) if self._most_rows and inputs else size

    def learn(self, outputs: Sequence[OutputTensor]) -> None:
        """Remember the sizes of an answer."""
        if not self._varying:
            return
        for tensor in outputs:
            if tensor.name in self._varying:
                rows = self._rows(tensor.shape) if self._most_rows else 1
                self._varying[tensor.name] = tensor.array.nbytes // max(rows, 1)

    def _rows(self, shape: tuple[int, ...]) -> int:
        return min(max(shape[0], 0), self._most_rows) if shape else 1
