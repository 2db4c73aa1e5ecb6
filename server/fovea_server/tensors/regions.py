"""Tensors in shared memory that clients have registered."""

from __future__ import annotations

from typing import NamedTuple

from fovea_preprocess.errors import InvalidRequest, NotFound, RegionFailed
from fovea_server.tensors.cuda_shared_memory import CudaSharedMemory, OpenedRegion
from fovea_server.tensors.shared_memory import MappedRegion, SharedMemory

Opened = MappedRegion | OpenedRegion


class RegionSlice(NamedTuple):
    """The place of a tensor in shared memory, in bytes."""

    region: str
    offset: int
    byte_size: int


class RegionPlace:
    """A place for an output, which stays valid after its region is unregistered."""

    def __init__(self, target: Opened, offset: int, byte_size: int) -> None:
        self._target = target
        self._offset = offset
        self._byte_size = byte_size

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an output; RegionFailed where it does not fit."""
        view = memoryview(data)
        if view.nbytes > self._byte_size:
            raise RegionFailed(
                f"shared memory size specified with the request for output '{name}' "
                f"({self._byte_size} bytes) should be at least {view.nbytes} bytes to hold the "
                "results"
            )
        self._target.write(self._offset, view)


class SharedRegions:
    """Finds tensors in registered regions, with Triton's messages.

    Raises:
        NotFound: there is no such region.
        InvalidRequest: the region is smaller.
        RegionFailed: its memory no longer exists.
    """

    def __init__(self, system: SharedMemory, cuda: CudaSharedMemory) -> None:
        self._system = system
        self._cuda = cuda

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Read bytes of a region; system memory is not copied, so a client can still change it."""
        return self._find(region, offset, byte_size).read(offset, byte_size)

    def output(self, region: str, offset: int, byte_size: int) -> RegionPlace:
        """Find the place for an output, before the model runs."""
        return RegionPlace(self._find(region, offset, byte_size), offset, byte_size)

    def _find(self, region: str, offset: int, byte_size: int) -> Opened:
        found: Opened | None = self._system.find(region) or self._cuda.find(region)
        if found is None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        size = found.region.byte_size
        if not 0 <= offset < size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{region}'")
        if not 0 <= byte_size <= size - offset:
            raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{region}'")
        return found
