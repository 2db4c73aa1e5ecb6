"""A network as the tensors it computes, whoever runs it."""

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
    """One tensor that depends on what is fed.

    What only copies it, rounded or not (casts, quantisation, Identity), is no layer of its own.

    Attributes:
        name: as the file has it.
        names: of it and of its copies.
        tensor: the copy that is compared: the last, so that quantisation counts; or the one that
            is a model output.
        op: operator type; `INPUT` for a model input.
        node: name of the operator, often empty.
        port: which of the operator's outputs it is.
        dtype: numpy's name of the element type as it is computed.
        shape: as it is for the inputs that are compared.
        inputs: positions of the layers it is computed from.
        is_output: whether it is an output of the model.
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
        """Whether it is measured; integers and booleans are equal or not."""
        return "float" in self.dtype

    @property
    def nbytes(self) -> int:
        """About what its values take."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """How a layer is computed.

    Attributes:
        attributes: with the operator's defaults filled in.
        given: names of the attributes that the file itself has.
        constants: name and value of what it reads besides layers: weights, in its order.
    """

    attributes: dict[str, Any]
    given: frozenset[str]
    constants: list[tuple[str, Array]]


class Network(Protocol):
    """A model opened for its inner tensors.

    Attributes:
        layers: each after those it is computed from, in an order that follows from the graph
            alone, however its file lists it.
        precision: the coarsest arithmetic in it.
    """

    layers: tuple[Layer, ...]
    precision: Precision

    def run(
        self, tensors: Sequence[str], feeds: Sequence[Mapping[str, Array]]
    ) -> Iterator[list[Array]]:
        """Each of some tensors, one after the other: its values for every feed.

        Raises:
            UnsupportedModel: the runtime cannot run the model.
        """
        ...

    def operator(self, layer: Layer) -> Operator | None:
        """How a layer is computed; None where that cannot be known."""
        ...
