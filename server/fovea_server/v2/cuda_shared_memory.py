"""Memory of GPUs that clients have registered, for tensors that are not sent.

Source: "CUDA Shared Memory Extension" of Triton's protocol.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from fovea_engines.cuda.base import Device
from fovea_engines.cuda.driver import open_device
from fovea_preprocess.errors import (
    AlreadyExists,
    BackendError,
    InvalidRequest,
    NotFound,
    RegionFailed,
    Unsupported,
)
from fovea_server.v2.shared_memory import NOT_ALLOWED

log = logging.getLogger(__name__)

_HANDLE_SIZE = 64


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """Memory of a GPU that another process has allocated.

    Attributes:
        name: what requests call it.
        device_id: number of the GPU.
        byte_size: its size.
    """

    name: str
    device_id: int
    byte_size: int


class CudaSharedMemory:
    """The regions of GPUs' memory that clients have registered; any thread may call.

    Tensors are copied through the host, and are taken like any others from there.

    Args:
        allowed: whether clients may register anything.
        device: opens the GPU of a number.
    """

    def __init__(self, allowed: bool, device: Callable[[int], Device] = open_device) -> None:
        self._allowed = allowed
        self._device = device
        self._devices: dict[int, Device] = {}
        self._lock = threading.Lock()
        self._opened: dict[str, _OpenedRegion] = {}

    def register(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Open memory that another process has allocated, in Triton's words where it is refused.

        Args:
            name: what requests will call it.
            raw_handle: a `cudaIpcMemHandle_t`.
            device_id: number of its GPU.
            byte_size: how much of it.

        Raises:
            Unsupported: clients may not.
            AlreadyExists: the name is taken.
            InvalidRequest: the handle is none, there is no such GPU, or its memory is smaller.
        """
        if not self._allowed:
            raise Unsupported(NOT_ALLOWED)
        if len(raw_handle) != _HANDLE_SIZE:
            raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        with self._lock:
            if name in self._opened:
                raise AlreadyExists(f"shared memory region '{name}' already in manager")
            try:
                if device_id not in self._devices:
                    self._devices[device_id] = self._device(device_id)
                region = CudaRegion(name, device_id, byte_size)
                opened = _OpenedRegion(region, self._devices[device_id], raw_handle)
            except BackendError as error:
                log.warning("CUDA shared memory region %r: %s", name, error)
                raise InvalidRequest(
                    "failed to register shared memory region: invalid args"
                ) from error
            self._opened[name] = opened

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all; one that is not there is as good as forgotten."""
        with self._lock:
            names = list(self._opened) if name is None else [name]
            for gone in [self._opened.pop(each) for each in names if each in self._opened]:
                gone.close()

    def status(self, name: str | None = None) -> list[CudaRegion]:
        """One region, or all in the order of their names.

        Raises:
            NotFound: there is none of that name.
        """
        opened = dict(self._opened)
        if name is None:
            return [opened[each].region for each in sorted(opened)]
        if name not in opened:
            raise NotFound(f"Unable to find cuda shared memory region: '{name}'")
        return [opened[name].region]

    def size(self, name: str) -> int | None:
        """Bytes of a region; None where there is none."""
        opened = self._opened.get(name)
        return None if opened is None else opened.region.byte_size

    def read(self, name: str, offset: int, byte_size: int) -> memoryview:
        """A copy of a part of a region, in the host's memory.

        Raises:
            RegionFailed: it has just gone, or the GPU has failed.
        """
        with self._lock:
            return self._at(name).read(offset, byte_size)

    def write(self, name: str, offset: int, data: memoryview) -> None:
        """Write to a part of a region; done when this returns.

        Raises:
            RegionFailed: it has just gone, or the GPU has failed.
        """
        with self._lock:
            self._at(name).write(offset, data)

    def close(self) -> None:
        """Forget everything and let go of the GPUs. Calling it again does nothing."""
        self.unregister()
        with self._lock:
            while self._devices:
                self._devices.popitem()[1].close()

    def _at(self, name: str) -> _OpenedRegion:
        if name not in self._opened:
            raise RegionFailed(f"Unable to find shared memory region: '{name}'")
        return self._opened[name]


class _OpenedRegion:
    """A region, and what it takes to copy from and to it."""

    def __init__(self, region: CudaRegion, device: Device, handle: bytes) -> None:
        self.region = region
        self._device = device
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

    def read(self, offset: int, size: int) -> memoryview:
        with self._failures(), self._device.current():
            if size:
                part = self._memory.at(offset)
                self._device.copy_out(self._pinned, part, size, self._stream)
                self._stream.synchronize()
            return memoryview(self._pinned.array[:size].tobytes())

    def write(self, offset: int, data: memoryview) -> None:
        with self._failures(), self._device.current():
            if data.nbytes:
                self._pinned.array[: data.nbytes] = np.frombuffer(data, np.uint8)
                part = self._memory.at(offset)
                self._device.copy_in(part, self._pinned, data.nbytes, self._stream)
                self._stream.synchronize()

    def close(self) -> None:
        try:
            with self._device.current():
                for taken in (self._stream, self._pinned, self._memory):
                    taken.close()
        except BackendError as error:
            log.warning("CUDA shared memory region %r: %s", self.region.name, error)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            raise RegionFailed(f"shared memory region '{self.region.name}': {error}") from error
