"""Reads and writes GPU buffers that other processes allocated."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import numpy as np

from fovea_engines.backends.tensorrt.cuda.driver import Device, open_device
from fovea_engines.backends.tensorrt.cuda.resources import DeviceMemory, PinnedMemory, Stream
from fovea_engines.session import Closing
from fovea_preprocess.errors import BackendError, InvalidRequest

log = logging.getLogger(__name__)


class CudaMemory(Closing):
    """Opens GPU buffers of other processes by their `cudaIpcMemHandle_t`; see `GpuMemory`."""

    def __init__(self, device: Callable[[int], Device] = open_device) -> None:
        self._device = device
        self._devices: dict[int, Device] = {}

    def open(self, device_id: int, handle: bytes, byte_size: int) -> CudaBuffer:
        """Open a buffer; see `GpuMemory.open`."""
        if device_id not in self._devices:
            self._devices[device_id] = self._device(device_id)
        return CudaBuffer(self._devices[device_id], handle, byte_size)

    def close(self) -> None:
        """Release the GPUs. A second call has no effect."""
        while self._devices:
            self._devices.popitem()[1].close()


class CudaBuffer:
    """A GPU buffer of another process; see `GpuBuffer`.

    Data is copied through page-locked host memory.
    """

    def __init__(self, device: Device, handle: bytes, byte_size: int) -> None:
        self._device = device
        self._lock = threading.Lock()
        with device.current(), ExitStack() as undo:
            self._memory = device.open_shared(handle)
            undo.callback(self._memory.close)
            if not 0 < byte_size <= self._memory.size:
                raise InvalidRequest(
                    f"the region has {byte_size} bytes, but the GPU buffer has only "
                    f"{self._memory.size}"
                )
            self._pinned = device.pinned(byte_size)
            undo.callback(self._pinned.close)
            self._stream = device.stream()
            undo.pop_all()
        taken = (self._stream, self._pinned, self._memory)
        self._finalizer = weakref.finalize(self, _close, device, taken)
        # Do not close the buffer when Python exits: the driver may be unloaded already.
        self._finalizer.atexit = False

    def close(self) -> None:
        """Close the buffer, even if other objects still reference it.

        A second call has no effect.
        """
        self._finalizer()

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy `byte_size` bytes, from a byte offset on, to host memory; see `GpuBuffer.read`."""
        with self._lock, self._device.current():
            if byte_size:
                part = self._memory.at(offset)
                self._device.copy_out(self._pinned, part, byte_size, self._stream)
                self._stream.synchronize()
            return memoryview(self._pinned.array[:byte_size].tobytes())

    def write(self, offset: int, data: memoryview) -> None:
        """Write all bytes of `data` to the buffer, from a byte offset on; see `GpuBuffer.write`."""
        with self._lock, self._device.current():
            if data.nbytes:
                self._pinned.array[: data.nbytes] = np.frombuffer(data, np.uint8)
                part = self._memory.at(offset)
                self._device.copy_in(part, self._pinned, data.nbytes, self._stream)
                self._stream.synchronize()


def _close(device: Device, taken: Iterable[Stream | PinnedMemory | DeviceMemory]) -> None:
    try:
        with device.current():
            for each in taken:
                each.close()
    except BackendError as error:
        log.warning("a buffer of another process could not be closed: %s", str(error))
