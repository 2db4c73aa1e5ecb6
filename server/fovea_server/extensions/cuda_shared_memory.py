"""The CUDA shared memory extension: tensors in registered memory of GPUs.

Source: "CUDA Shared Memory Extension" of Triton's protocol.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from fovea_engines.backends.cuda.driver import Device, open_device
from fovea_engines.backends.cuda.resources import DeviceMemory, PinnedMemory, Stream
from fovea_preprocess.errors import BackendError, InvalidRequest, RegionFailed
from fovea_server.extensions.shared_memory import RegionTable

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

    def __init__(self, allowed: bool, device: Callable[[int], Device] = open_device) -> None:
        super().__init__("cuda", allowed)
        self._device = device
        self._devices: dict[int, Device] = {}
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
        if region.device_id not in self._devices:
            self._devices[region.device_id] = self._device(region.device_id)
        opened = OpenedRegion(region, self._devices[region.device_id], handle)
        self._open.add(opened)
        return opened

    def close(self) -> None:
        """Unregister everything and release the GPUs. Calling it again does nothing."""
        self.unregister()
        with self._lock:
            for region in list(self._open):
                region.close()
            while self._devices:
                self._devices.popitem()[1].close()


class OpenedRegion:
    """An open region, which closes with its last reference; safe in any thread."""

    def __init__(self, region: CudaRegion, device: Device, handle: bytes) -> None:
        self.region = region
        self._device = device
        self._lock = threading.Lock()
        with device.current(), ExitStack() as undo:
            self._memory = device.open_shared(handle)
            undo.callback(self._memory.close)
            if not 0 < region.byte_size <= self._memory.size:
                raise InvalidRequest(
                    f"failed to register shared memory region '{region.name}': invalid args"
                )
            self._pinned = device.pinned(region.byte_size)
            undo.callback(self._pinned.close)
            self._stream = device.stream()
            undo.pop_all()
        taken = (self._stream, self._pinned, self._memory)
        self._finalizer = weakref.finalize(self, _close, region.name, device, taken)
        # At exit the driver may be unloaded already.
        self._finalizer.atexit = False

    def close(self) -> None:
        """Close it, even if it is referenced. Calling it again does nothing."""
        self._finalizer()

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy a part of it to the host's memory; RegionFailed: the GPU has failed."""
        with self._lock, self._failures(), self._device.current():
            if byte_size:
                part = self._memory.at(offset)
                self._device.copy_out(self._pinned, part, byte_size, self._stream)
                self._stream.synchronize()
            return memoryview(self._pinned.array[:byte_size].tobytes())

    def write(self, offset: int, data: memoryview) -> None:
        """Write to a part of it, completely; RegionFailed: the GPU has failed."""
        with self._lock, self._failures(), self._device.current():
            if data.nbytes:
                self._pinned.array[: data.nbytes] = np.frombuffer(data, np.uint8)
                part = self._memory.at(offset)
                self._device.copy_in(part, self._pinned, data.nbytes, self._stream)
                self._stream.synchronize()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            raise RegionFailed(f"shared memory region '{self.region.name}': {error}") from error


def _close(
    name: str, device: Device, taken: Iterable[Stream | PinnedMemory | DeviceMemory]
) -> None:
    try:
        with device.current():
            for each in taken:
                each.close()
    except BackendError as error:
        log.warning("CUDA shared memory region %r: %s", name, error)
