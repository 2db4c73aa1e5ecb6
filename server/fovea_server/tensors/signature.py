"""Model inputs and outputs as clients see them, and the expected size of a response."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from fovea_engines.repository.model_config import ConfigTensor, ModelConfig, ModelInput
from fovea_server.tensors.messages import InputTensor, OutputTensor
from fovea_server.tensors.wire import NUMPY, protocol_name


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as text as in Triton's error messages, for example "[-1,4]"."""
    return f"[{','.join(map(str, shape))}]"


def shapes_match(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two shapes are equal. A size of -1 in one shape matches any size."""
    return len(a) == len(b) and all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class ImageSides:
    """The image sizes that an engine accepts: multiples of `step`, or only the largest size.

    Attributes:
        largest: largest accepted shape, [3, height, width] or [height, width, 3].
        step: difference between accepted heights or widths, in pixels.
    """

    largest: tuple[int, ...]
    step: int

    def __str__(self) -> str:
        return f"multiples of {self.step}, up to {shape_text(self.largest)}"

    def hold(self, image: tuple[int, ...]) -> bool:
        """Return whether the engine accepts an image of this shape."""
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
        shape: sizes of the dimensions, -1 for any size. If the model has a batch dimension, it is
            the first.
        optional: True if a request may omit this input.
        reshape: shape in the engine without the batch dimension; None if it equals `shape`.
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
        inputs: inputs of the model, without the control inputs for sequences.
        outputs: outputs of the model.
        max_batch_size: largest batch size; 0 if the model has no batch dimension.
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
            sides: dict from the name of an image input to its accepted sizes.
            scalars: names of inputs and outputs without dimensions. Clients send and receive them
                with shape [1].
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

    The size of an output with a fixed shape follows from the signature. An output with a variable
    shape is expected to have the same size per image (row of the batch) as in the last response.
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
        """Return the expected number of bytes of all outputs. `inputs` need not be checked yet."""
        size = self._fixed + sum(self._varying.values())
        return size * self._rows(inputs[0].shape) if self._most_rows and inputs else size

    def learn(self, outputs: Sequence[OutputTensor]) -> None:
        """Store the sizes of the outputs with variable shapes, for the next prediction."""
        if not self._varying:
            return
        for tensor in outputs:
            if tensor.name in self._varying:
                rows = self._rows(tensor.shape) if self._most_rows else 1
                self._varying[tensor.name] = tensor.array.nbytes // max(rows, 1)

    def _rows(self, shape: tuple[int, ...]) -> int:
        return min(max(shape[0], 0), self._most_rows) if shape else 1
