"""Describes the tensors of a model, independently of its runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from fovea_engines.repository.card import Precision
from fovea_engines.session import Array

INPUT = "Input"
"""Operator type of layers that are inputs of the model."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A tensor that depends on the model's inputs, together with its copies.

    A copy is, for example, the result of a cast or of QuantizeLinear and DequantizeLinear.

    Attributes:
        name: name of the tensor.
        names: names of the tensor and of its copies.
        tensor: name of the tensor or copy to compare. It is an output of the model if possible.
            Otherwise it is the last copy, which includes the error of the quantisation.
        op: type of the operator; `INPUT` for an input of the model, "" if unknown.
        node: name of the operator; often empty.
        port: index of the tensor among the operator's outputs.
        dtype: NumPy's name of the tensor's element type.
        shape: shape of the tensor for the inputs of the comparison.
        inputs: indices of the layers from which the tensor is computed.
        is_output: True if the tensor or a copy is an output of the model.
    """

    name: str
    names: tuple[str, ...]
    tensor: str
    op: str
    node: str
    port: int
    dtype: str
    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    is_output: bool

    @property
    def is_float(self) -> bool:
        """Return whether the tensor has floats. Only floats may differ by rounding.

        Integers and booleans of both models must be equal.
        """
        return "float" in self.dtype

    @property
    def nbytes(self) -> int:
        """Return the estimated size of the tensor's values in bytes."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator that computes a layer.

    Attributes:
        attributes: name of each attribute -> its value, including default values.
        given: names of the attributes that the file sets.
        constants: name and value of each constant input, e.g. of the weights, in order.
    """

    attributes: dict[str, Any]
    given: frozenset[str]
    constants: list[tuple[str, Array]]


class Network(Protocol):
    """A model whose inner tensors can be read.

    Attributes:
        layers: layers in a topological order that depends only on the graph, not on the order of
            nodes in the file.
        precision: lowest precision of the arithmetic in the model.
        fuses: True if the runtime may compute a tensor differently when additional tensors are
            read.
    """

    layers: tuple[Layer, ...]
    precision: Precision
    fuses: bool

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Yield for each tensor its values for all feeds.

        Raises:
            UnsupportedModel: the runtime cannot run the model.
        """
        ...

    def operator(self, layer: Layer) -> Operator | None:
        """Return the operator that computes a layer, or None if it is unknown."""
        ...
