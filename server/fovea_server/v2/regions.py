"""Tensors in memory that clients have registered: where a request says so, nothing is sent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fovea_preprocess.errors import InvalidRequest, NotFound, RegionFailed
from fovea_server.v2.byte_strings import encode
from fovea_server.v2.cuda_shared_memory import CudaSharedMemory
from fovea_server.v2.messages import OutputTensor
from fovea_server.v2.shared_memory import SharedMemory


class RegionSlice(NamedTuple):
    """Where in shared memory a tensor is, bytes."""

    region: str
    offset: int
    byte_size: int


class Regions:
    """Reads and writes tensors in registered regions, in Triton's words where it cannot.

    Args:
        system: regions of this machine's memory.
        cuda: regions of GPUs' memory.
    """

    def __init__(self, system: SharedMemory, cuda: CudaSharedMemory) -> None:
        self._system = system
        self._cuda = cuda

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Bytes of a region; of system memory not a copy, so that the client can still change it.

        Args:
            region: its name.
            offset: of the first byte in the region.
            byte_size: how many.

        Raises:
            NotFound: there is no such region.
            InvalidRequest: it is smaller.
            RegionFailed: its memory is not there any more.
        """
        view = self._system.view(region)
        if view is not None:
            _check(region, view.nbytes, offset, byte_size)
            return view[offset : offset + byte_size]
        _check(region, self._cuda.size(region), offset, byte_size)
        return self._cuda.read(region, offset, byte_size)

    def write(self, output: OutputTensor, region: str, offset: int, byte_size: int) -> int:
        """Put an output where the client wants it.

        Args:
            output: the tensor.
            region: name of the region.
            offset: of the first byte in the region.
            byte_size: room for it there.

        Returns:
            Bytes that were written.

        Raises:
            NotFound: there is no such region.
            InvalidRequest: it is smaller than the room.
            RegionFailed: the room is too small, or the memory not there any more.
        """
        view = self._system.view(region)
        size = self._cuda.size(region) if view is None else view.nbytes
        _check(region, size, offset, byte_size)
        data = _wire(output)
        if data.nbytes > byte_size:
            raise RegionFailed(
                f"shared memory size specified with the request for output '{output.name}' "
                f"({byte_size} bytes) should be at least {data.nbytes} bytes to hold the results"
            )
        if view is not None:
            view[offset : offset + data.nbytes] = data
        else:
            self._cuda.write(region, offset, data)
        return data.nbytes


def _check(region: str, size: int | None, offset: int, byte_size: int) -> None:
    if size is None:
        raise NotFound(f"Unable to find shared memory region: '{region}'")
    if not 0 <= offset < size:
        raise InvalidRequest(f"Invalid offset for shared memory region: '{region}'")
    if not 0 <= byte_size <= size - offset:
        raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{region}'")


def _wire(output: OutputTensor) -> memoryview:
    if output.datatype == "BYTES":
        return memoryview(encode(output.array))
    # As bytes, because a memoryview knows no half or brain floats.
    return np.ascontiguousarray(output.array).reshape(-1).view(np.uint8).data
