"""Implements a device's resources with pycuda. Use and close them while the device is current."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.cuda import base
from fovea_engines.backends.cuda.capture import driver_call
from fovea_preprocess.errors import InferenceFailed, OutOfMemory

# CU_STREAM_NON_BLOCKING, which pycuda does not name.
_NON_BLOCKING = 1


class PycudaStream:
    """A `Stream`; `native` is pycuda's."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        with failures(driver):
            self.native = driver.Stream(_NON_BLOCKING)
        self.handle: int = self.native.handle

    def wait(self, event: base.Event) -> None:
        """Make all later work wait for an event."""
        with failures(self._driver):
            self.native.wait_for_event(native(event))

    def synchronize(self) -> None:
        """Block until all enqueued work is done."""
        with failures(self._driver):
            self.native.synchronize()

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        self.native = None


class PycudaEvent:
    """An `Event`; `native` is pycuda's."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        with failures(driver):
            # A waiting thread leaves its core to threads that decode images.
            self.native = driver.Event(driver.event_flags.BLOCKING_SYNC)

    def record(self, stream: base.Stream) -> None:
        """Move it to the end of the work enqueued in a stream."""
        with failures(self._driver):
            self.native.record(native(stream))

    def synchronize(self) -> None:
        """Block until the point is reached."""
        with failures(self._driver):
            self.native.synchronize()

    def milliseconds_since(self, earlier: base.Event) -> float:
        """Return the time between two events that were both reached."""
        with failures(self._driver):
            return float(self.native.time_since(native(earlier)))

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        self.native = None


class PycudaMemory:
    """A `DeviceMemory`."""

    def __init__(self, driver: Any, size: int) -> None:
        with failures(driver):
            self._allocation = driver.mem_alloc(size)
        self.address = int(self._allocation)
        self.size = size

    def at(self, offset: int) -> base.DeviceMemory:
        """Return the bytes from an offset."""
        return _Part(self, offset)

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class SharedMemory:
    """A `DeviceMemory` of another process; pycuda cannot report its size."""

    def __init__(self, handle: bytes) -> None:
        bindings = import_module("cuda.bindings.driver")
        wanted = bindings.CUipcMemHandle()
        ctypes.memmove(wanted.getPtr(), handle, len(handle))
        flag = bindings.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        self._opened = driver_call("cuIpcOpenMemHandle", wanted, flag)
        self.address = int(self._opened)
        _, self.size = driver_call("cuMemGetAddressRange", self._opened)

    def at(self, offset: int) -> base.DeviceMemory:
        """Return the bytes from an offset."""
        return _Part(self, offset)

    def close(self) -> None:
        """Unmap it; the other process keeps it. Calling it again does nothing."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            driver_call("cuIpcCloseMemHandle", opened)


class _Part:
    """A part of a `DeviceMemory`, which keeps the whole alive."""

    def __init__(self, whole: base.DeviceMemory, offset: int) -> None:
        self._whole = whole
        self.address = whole.address + offset
        self.size = whole.size - offset

    def at(self, offset: int) -> base.DeviceMemory:
        """Return the bytes from an offset."""
        return _Part(self, offset)

    def close(self) -> None:
        """Do nothing: the memory belongs to the whole."""


class PycudaPinned:
    """A `PinnedMemory`."""

    def __init__(self, driver: Any, size: int) -> None:
        with failures(driver):
            self.array: NDArray[np.uint8] = driver.pagelocked_empty(size, np.uint8)
        self._allocation: Any = self.array.base

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        if self._allocation is not None:
            self.array = np.empty(0, np.uint8)
            self._allocation.free()
            self._allocation = None


class PycudaKernel:
    """A `Kernel`."""

    def __init__(self, driver: Any, image: bytes, name: str) -> None:
        self._driver = driver
        try:
            # The function keeps its module alive.
            self._function = driver.module_from_buffer(image).get_function(name)
        except driver.Error as error:
            raise InferenceFailed(
                f"the driver does not take the kernel {name!r} ({error}); it must be as new as "
                "the CUDA that compiled it: update the driver, or build the engine again here"
            ) from error

    def __call__(
        self,
        stream: base.Stream,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *args: Any,
    ) -> None:
        """Enqueue the kernel."""
        with failures(self._driver):
            self._function(*args, grid=grid, block=block, stream=native(stream))

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        self._function = None


@contextmanager
def failures(driver: Any) -> Iterator[None]:
    """Convert pycuda's errors to Fovea's.

    Raises:
        OutOfMemory: there is not enough memory.
        InferenceFailed: any other error.
    """
    try:
        yield
    except driver.MemoryError as error:
        raise OutOfMemory(f"{error}; unload a model, or stop what else uses the GPU") from error
    except driver.Error as error:
        raise InferenceFailed(
            f"{error}; a GPU that has faulted refuses everything from then on: if it does, "
            "restart the process"
        ) from error


def native(made: base.Stream | base.Event) -> Any:
    """Return pycuda's object, which pycuda requires; the argument must be from this module."""
    return cast("PycudaStream | PycudaEvent", made).native
