"""A network as the set of its tensors, independent of the runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from fovea_engines.repository.card import Precision
from fovea_engines.session import Array

INPUT = "Input"
"""Operator type of layers that are inputs of the network."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One tensor that depends on the inputs, with its copies by casts or quantisation.

    Attributes:
        name: name of the tensor.
        names: names of the tensor and its copies.
        tensor: name of the copy to compare: an output of the model, or else the last copy, to
            include the error of quantisation.
        op: operator type; `INPUT` for an input of the model.
        node: name of the operator, often empty.
        port: index of the tensor among the operator's outputs.
        dtype: NumPy's name of the computed element type.
        shape: shape for the compared inputs.
        inputs: positions of the layers from which it is computed.
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
        """Return True for float tensors, which are measured.

        Integers and booleans must be equal.
        """
        return "float" in self.dtype

    @property
    def nbytes(self) -> int:
        """Return the estimated size of the values in bytes."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """The computation of a layer.

    Attributes:
        attributes: attributes, including defaults of the operator.
        given: names of the attributes in the file.
        constants: name and value of the constant inputs (weights), in order.
    """

    attributes: dict[str, Any]
    given: frozenset[str]
    constants: list[tuple[str, Array]]


class Network(Protocol):
    """A model whose inner tensors can be read.

    Attributes:
        layers: layers in a topological order that depends only on the graph, not on the order of
            nodes in the file.
        precision: coarsest arithmetic in the model.
        fuses: True if the network may compute a tensor differently when more tensors are read.
    """

    layers: tuple[Layer, ...]
    precision: Precision
    fuses: bool

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Yield the values of each tensor for all feeds.

        Raises:
            UnsupportedModel: the runtime cannot run the model.
        """
        ...

    def operator(self, layer: Layer) -> Operator | None:
        """Return the computation of a layer, or None if it is unknown."""
        ...
