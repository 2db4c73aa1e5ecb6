"""Implements `Device` with pycuda, in the primary context, which TensorRT uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from fovea_engines.backends.cuda import base
from fovea_engines.backends.cuda.capture import Recording, capture, driver_call
from fovea_engines.backends.cuda.resources import (
    PycudaEvent,
    PycudaKernel,
    PycudaMemory,
    PycudaPinned,
    PycudaStream,
    SharedMemory,
    failures,
    native,
)
from fovea_engines.backends.installing import install
from fovea_engines.device import gpu_here
from fovea_engines.session import Closing
from fovea_preprocess.errors import BackendUnavailable, OutOfMemory


def open_device(index: int = 0) -> base.Device:
    """Open one GPU.

    Args:
        index: in the driver's order, which CUDA_VISIBLE_DEVICES changes.

    Raises:
        BackendUnavailable: pycuda, the driver or the GPU is missing; the message says what to do.
    """
    if gpu_here() is None:
        raise BackendUnavailable(
            "there is no NVIDIA GPU here, or no driver for it: nvidia-smi must list it, and in a "
            "container, too (docker run --gpus all)"
        )
    driver = _pycuda()
    try:
        driver.init()
        count = driver.Device.count()
        if not 0 <= index < count:
            raise BackendUnavailable(f"there is no GPU {index}; there are {count}, the first is 0")
        return PycudaDevice(driver, driver.Device(index))
    except driver.Error as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}); nvidia-smi must list it, and in a container, too: "
            "docker run --gpus all"
        ) from error


class PycudaDevice(Closing):
    """A `Device` with pycuda."""

    def __init__(self, driver: Any, device: Any) -> None:
        self.name: str = device.name()
        self.capability: tuple[int, int] = device.compute_capability()
        self._driver = driver
        self._context = device.retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the device of the calling thread, and restore the previous one afterwards."""
        with failures(self._driver):
            self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes."""
        with failures(self._driver):
            free, total = self._driver.mem_get_info()
        return free, total

    def stream(self) -> base.Stream:
        """Create a stream that does not wait for the default one."""
        return PycudaStream(self._driver)

    def event(self) -> base.Event:
        """Create an event that records time."""
        return PycudaEvent(self._driver)

    def alloc(self, size: int) -> base.DeviceMemory:
        """Allocate bytes on the GPU; raises OutOfMemory with the figures."""
        try:
            return PycudaMemory(self._driver, size)
        except OutOfMemory as error:
            free, total = self.memory()
            raise OutOfMemory(
                f"{_megabytes(size)} are wanted, and {self.name} has {_megabytes(free)} of "
                f"{_megabytes(total)} free; unload a model, or stop what else uses the GPU"
            ) from error

    def open_shared(self, handle: bytes) -> base.DeviceMemory:
        """Open memory that another process has allocated on this GPU."""
        return SharedMemory(handle)

    def pinned(self, size: int) -> base.PinnedMemory:
        """Allocate page-locked bytes of the host; raises OutOfMemory with the figure."""
        try:
            return PycudaPinned(self._driver, size)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{_megabytes(size)} of the host's memory are wanted for copies, and it has not "
                "that much left; unload a model, or give the container more"
            ) from error

    def copy_in(
        self, to: base.DeviceMemory, source: base.PinnedMemory, size: int, stream: base.Stream
    ) -> None:
        """Enqueue a copy of the first `size` bytes to the GPU."""
        with failures(self._driver):
            self._driver.memcpy_htod_async(to.address, source.array[:size], native(stream))

    def copy_out(
        self, to: base.PinnedMemory, source: base.DeviceMemory, size: int, stream: base.Stream
    ) -> None:
        """Enqueue a copy of the first `size` bytes to the host."""
        with failures(self._driver):
            self._driver.memcpy_dtoh_async(to.array[:size], source.address, native(stream))

    def capture(self, stream: base.Stream) -> AbstractContextManager[Recording]:
        """Record the work enqueued inside the block instead of running it."""
        return capture(stream)

    def kernel(self, image: bytes, name: str) -> base.Kernel:
        """Load a kernel of a PTX or cubin image."""
        return PycudaKernel(self._driver, image, name)

    def close(self) -> None:
        """Release the device. Calling it again does nothing."""
        if self._context is None:
            return
        context, self._context = self._context, None
        # pycuda releases a context only if it believes it to be current, and CUDA does not remove a
        # primary context from the thread's stack by itself.
        context.push()
        driver_call("cuCtxPopCurrent")
        context.detach()


def _pycuda() -> Any:
    try:
        driver = import_module("pycuda.driver")
        import_module("cuda.bindings.driver")
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}): {install('pycuda', 'cuda-bindings')}, for which a CUDA "
            "toolkit must be there; docker/gpu.Dockerfile has all of it"
        ) from error
    except ImportError as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}); install NVIDIA's driver, one as new as the CUDA that "
            "pycuda was built with"
        ) from error
    return driver


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
