"""Defines a network as the tensors it computes, independent of its runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from fovea_engines.repository.card import Precision
from fovea_engines.session import Array

INPUT = "Input"
"""Operator of the layers that are fed."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One tensor that depends on the inputs, and its copies, rounded or not (casts, quantisation).

    Attributes:
        names: of the tensor and of its copies.
        tensor: the copy to compare: a model output, or else the last, so that quantisation counts.
        op: operator type; `INPUT` for a model input.
        node: name of the operator, often empty.
        port: index among the operator's outputs.
        dtype: numpy's name of the computed element type.
        shape: for the compared inputs.
        inputs: positions of the layers it is computed from.
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
        """Return True for floats, which are measured; integers and booleans must be equal."""
        return "float" in self.dtype

    @property
    def nbytes(self) -> int:
        """Estimate the size of the values."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """The computation of a layer.

    Attributes:
        attributes: with the operator's defaults; the file itself has only those `given`.
        constants: name and value of its constant inputs (weights), in order.
    """

    attributes: dict[str, Any]
    given: frozenset[str]
    constants: list[tuple[str, Array]]


class Network(Protocol):
    """A model opened for its inner tensors.

    The layers are in a topological order that depends only on the graph, not on its listing. The
    precision is the coarsest arithmetic in it. A network that `fuses` may compute a tensor in
    another way when more of them are read.
    """

    layers: tuple[Layer, ...]
    precision: Precision
    fuses: bool

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Yield, for each tensor, its values for every feed; UnsupportedModel if it cannot."""
        ...

    def operator(self, layer: Layer) -> Operator | None:
        """Return the computation of a layer; None where it is unknown."""
        ...
