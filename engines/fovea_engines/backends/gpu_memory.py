"""Defines how a backend opens memory of a GPU that another process has allocated."""

from __future__ import annotations

from typing import Protocol

from fovea_engines.session import Closing


class GpuBuffer(Protocol):
    """Memory of another process; safe in any thread, and closed with its last reference."""

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy a part of it to the host's memory; `BackendError`: the GPU has failed."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write to a part of it, completely; `BackendError`: the GPU has failed."""

    def close(self) -> None:
        """Close it, even if it is referenced. Calling it again does nothing."""


class GpuMemory(Closing, Protocol):
    """Opens buffers, and holds the GPUs that they are on until it is closed."""

    def open(self, device_id: int, handle: bytes, byte_size: int) -> GpuBuffer:
        """Open the first `byte_size` bytes of a `cudaIpcMemHandle_t`, 64 bytes.

        Raises:
            BackendError: there is no such GPU, or it refuses the handle.
            InvalidRequest: the memory is smaller.
        """
