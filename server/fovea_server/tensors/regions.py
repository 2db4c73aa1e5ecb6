"""Tensors in memory that clients have registered, as requests for tensors name them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RegionSlice(NamedTuple):
    """The place of a tensor in shared memory, in bytes."""

    region: str
    offset: int
    byte_size: int


class SharedOutput(Protocol):
    """A place for an output, which stays valid after its region is unregistered."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an output; RegionFailed where it does not fit."""


class Regions(Protocol):
    """Finds tensors in registered regions.

    Raises:
        NotFound: there is no such region.
        InvalidRequest: the region is smaller.
        RegionFailed: its memory no longer exists.
    """

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Read bytes of a region; a client can still change them where they are not copied."""

    def output(self, region: str, offset: int, byte_size: int) -> SharedOutput:
        """Find the place for an output, before the model runs."""
