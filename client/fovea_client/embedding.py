"""Defines the vector of an image as a typed value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_client.value import Value


@dataclass(frozen=True, slots=True)
class Embedding(Value):
    """A vector of an image, to compare images by.

    Attributes:
        norm: the length that the network gave the vector.
        normalised: the vector was divided by its length, as the option normalise says.
        data: float32 numbers, little-endian, in JSON as base64; absent with vector=list.
        numbers: the same as a list, with vector=list alone.
    """

    norm: float
    normalised: bool
    data: bytes | None = None
    numbers: tuple[float, ...] = ()

    @property
    def vector(self) -> NDArray[np.float32]:
        """Return the vector, float32 [n]; the cosine of two of length 1 is their product, `@`."""
        if self.data is None:
            return np.array(self.numbers, np.float32)
        return np.frombuffer(self.data, "<f4").astype(np.float32)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the number of its numbers, and its length."""
        return (f"a vector of {len(self.vector)}, norm {self.norm:.3g}",)


@dataclass(frozen=True, slots=True)
class Match:
    """An image of an index; the score is the cosine of both vectors, -1 to 1.

    Attributes:
        thumbnail: a small JPEG file; None unless it was asked for and the index has it.
    """

    name: str
    score: float
    thumbnail: bytes | None = None
