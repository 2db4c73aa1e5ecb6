"""The CUDA shared memory extension: tensors in registered memory of GPUs.

Source: "CUDA Shared Memory Extension" of Triton's protocol.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fovea_engines.backends.backend import GpuBuffer, GpuMemory
from fovea_engines.backends.registry import open_gpu_memory
from fovea_preprocess.errors import BackendError, InvalidRequest, RegionFailed
from fovea_server.tensors.shared_memory import RegionTable

log = logging.getLogger(__name__)

_HANDLE_SIZE = 64


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """A region of a GPU's memory that another process has allocated."""

    name: str
    device_id: int
    byte_size: int


class CudaSharedMemory(RegionTable[CudaRegion, "OpenedRegion"]):
    """The registered regions of GPUs' memory, copied to and from the host's memory."""

    def __init__(self, allowed: bool, memory: Callable[[], GpuMemory] = open_gpu_memory) -> None:
        super().__init__("cuda", allowed)
        self._open_memory = memory
        self._memory: GpuMemory | None = None
        # Includes unregistered regions that are still in use.
        self._open: weakref.WeakSet[OpenedRegion] = weakref.WeakSet()

    def register(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Open memory that another process has allocated, by its `cudaIpcMemHandle_t`.

        Raises:
            Unsupported: clients may not register regions.
            AlreadyExists: the name is taken.
            InvalidRequest: the handle is invalid, there is no such GPU, or its memory is smaller.
        """
        self._check_allowed()
        if len(raw_handle) != _HANDLE_SIZE:
            raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        region = CudaRegion(name, device_id, byte_size)
        try:
            self._add(name, region, lambda: self._opened(region, raw_handle))
        except BackendError as error:
            log.warning("CUDA shared memory region %r: %s", name, error)
            raise InvalidRequest("failed to register shared memory region: invalid args") from error

    def _opened(self, region: CudaRegion, handle: bytes) -> OpenedRegion:
        if self._memory is None:
            self._memory = self._open_memory()
        try:
            buffer = self._memory.open(region.device_id, handle, region.byte_size)
        except InvalidRequest as error:
            log.warning("CUDA shared memory region %r: %s", region.name, error)
            raise InvalidRequest(
                f"failed to register shared memory region '{region.name}': invalid args"
            ) from error
        opened = OpenedRegion(region, buffer)
        self._open.add(opened)
        return opened

    def close(self) -> None:
        """Unregister everything and release the GPUs. Calling it again does nothing."""
        self.unregister()
        with self._lock:
            for region in list(self._open):
                region.close()
            if self._memory is not None:
                self._memory.close()


class OpenedRegion:
    """An open region, which closes with its last reference; safe in any thread."""

    def __init__(self, region: CudaRegion, buffer: GpuBuffer) -> None:
        self.region = region
        self._buffer = buffer

    def close(self) -> None:
        """Close it, even if it is referenced. Calling it again does nothing."""
        self._buffer.close()

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy a part of it to the host's memory; RegionFailed: the GPU has failed."""
        with self._failures():
            return self._buffer.read(offset, byte_size)

    def write(self, offset: int, data: memoryview) -> None:
        """Write to a part of it, completely; RegionFailed: the GPU has failed."""
        with self._failures():
            self._buffer.write(offset, data)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            raise RegionFailed(f"shared memory region '{self.region.name}': {error}") from error
