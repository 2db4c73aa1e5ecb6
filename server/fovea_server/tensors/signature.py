"""The inputs and outputs of a model as clients see them, and the expected size of a response."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from fovea_engines.repository.model_config import ConfigTensor, ModelConfig, ModelInput
from fovea_server.tensors.messages import InputTensor, OutputTensor
from fovea_server.tensors.wire import NUMPY, protocol_name


def shape_text(shape: Iterable[int]) -> str:
    """Format a shape as in Triton's error texts: "[-1,4]"."""
    return f"[{','.join(map(str, shape))}]"


def shapes_match(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return True if two shapes are equal; -1 matches any size."""
    return len(a) == len(b) and all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class ImageSides:
    """The image sizes that an engine accepts: multiples of `step`, or the largest size.

    Attributes:
        largest: largest shape, [3, height, width] or [height, width, 3].
        step: step between accepted sizes in pixels.
    """

    largest: tuple[int, ...]
    step: int

    def __str__(self) -> str:
        return f"multiples of {self.step}, up to {shape_text(self.largest)}"

    def hold(self, image: tuple[int, ...]) -> bool:
        """Return True if the engine accepts an image of this shape."""
        return all(
            have == most or (0 < have < most and have % self.step == 0)
            for have, most in zip(image, self.largest, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One input or output of a model.

    Attributes:
        name: name of the tensor.
        datatype: the protocol's name of the datatype.
        shape: shape; -1 for any size. The first dimension is the batch if the model has one.
        optional: True if a request may omit this input.
        reshape: the engine's shape without the batch; None if it is the same shape.
        sides: accepted sizes of an image input; None for other tensors.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    sides: ImageSides | None = None


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Inputs and outputs of a model in the order of its configuration.

    Attributes:
        inputs: the inputs, without the control inputs of sequences.
        outputs: the outputs.
        max_batch_size: largest batch size; 0 without a batch dimension.
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
        """Make the signature of a complete configuration.

        Args:
            config: configuration of the model.
            sides: accepted sizes of image inputs, by input name.
            scalars: names of inputs and outputs without dimensions. Clients send and
                receive them as [1].
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
    """Predicts the size of a response in bytes before it is computed.

    An output of fixed shape has the size of its signature. An output of variable size is expected
    to be as large as in the last response.
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
        """Return the expected bytes of all outputs; the inputs need not be checked yet."""
        size = self._fixed + sum(self._varying.values())
        return size * self._rows(inputs[0].shape) if self._most_rows and inputs else size

    def learn(self, outputs: Sequence[OutputTensor]) -> None:
        """Remember the sizes of the variable outputs of a response."""
        if not self._varying:
            return
        for tensor in outputs:
            if tensor.name in self._varying:
                rows = self._rows(tensor.shape) if self._most_rows else 1
                self._varying[tensor.name] = tensor.array.nbytes // max(rows, 1)

    def _rows(self, shape: tuple[int, ...]) -> int:
        return min(max(shape[0], 0), self._most_rows) if shape else 1
