"""Opens a GPU with pycuda in the primary context, which TensorRT also uses.

Some tests use a mock of `Device`. tests/device_contract.py checks that the mock and `Device` behave
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

from fovea_engines.backends.installing import install
from fovea_engines.backends.tensorrt.cuda.resources import (
    AllocatedMemory,
    Capture,
    DeviceMemory,
    Event,
    ForeignMemory,
    Kernel,
    PinnedMemory,
    Stream,
    capture,
    driver_call,
    failures,
)
from fovea_engines.device import gpu_here
from fovea_engines.session import Closing
from fovea_preprocess.errors import BackendUnavailable, InferenceFailed, OutOfMemory

_ADVICE = "check that nvidia-smi lists the GPU; for a container, use docker run --gpus all"


def open_device(index: int = 0) -> Device:
    """Open a GPU by its index in the driver's order. CUDA_VISIBLE_DEVICES changes this order.

    Raises:
        BackendUnavailable: pycuda, the driver or the GPU is missing. The message names the remedy.
    """
    if gpu_here() is None:
        raise BackendUnavailable(f"no NVIDIA GPU, or no driver for it, was found: {_ADVICE}")
    driver = _pycuda()
    try:
        driver.init()
        count = driver.Device.count()
        if not 0 <= index < count:
            raise BackendUnavailable(
                f"unknown GPU {index}: this machine has {count}, numbered from 0"
            )
        _retain(index)
        return Device(driver, driver.Device(index))
    except (driver.Error, InferenceFailed) as error:
        raise BackendUnavailable(f"no GPU can be used ({error}): {_ADVICE}") from error


_retained: set[int] = set()
_retaining = Lock()


def _retain(index: int) -> None:
    """Keep the primary context of a GPU for the life of the process.

    Otherwise the context would be destroyed when its last user releases it. Then kernels that
    TensorRT caches in the context would be invalid (NVIDIA/TensorRT#1632), and also objects that an
    exception still references.
    """
    with _retaining:
        if index not in _retained:
            driver_call("cuDevicePrimaryCtxRetain", driver_call("cuDeviceGet", index))
            _retained.add(index)


class Device(Closing):
    """One GPU. Close all objects that were created from a `Device` before you close the `Device`.

    Any thread may call the methods inside a `with device.current()` block. If the GPU has failed,
    every method raises `InferenceFailed`.

    Attributes:
        name: the driver's name of the GPU, e.g. "NVIDIA H200".
        capability: compute capability as (major, minor).
    """

    def __init__(self, driver: Any, device: Any) -> None:
        self.name: str = device.name()
        self.capability: tuple[int, int] = device.compute_capability()
        self._driver = driver
        self._context = device.retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the calling thread's current device in the `with` block.

        Afterwards the previous device is current again.
        """
        with failures(self._driver):
            self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    def memory(self) -> tuple[int, int]:
        """Return the free and the total memory of the GPU in bytes."""
        with failures(self._driver):
            free, total = self._driver.mem_get_info()
        return free, total

    def stream(self) -> Stream:
        """Create a stream whose work does not wait for the default stream."""
        return Stream(self._driver)

    def event(self) -> Event:
        """Create an event, which marks a point in a stream."""
        return Event(self._driver)

    def alloc(self, size: int) -> DeviceMemory:
        """Allocate `size` bytes on the GPU.

        Raises:
            OutOfMemory: the GPU has too little free memory. The message has the free and the total
                memory.
        """
        try:
            return AllocatedMemory(self._driver, size)
        except OutOfMemory as error:
            free, total = self.memory()
            raise OutOfMemory(
                f"{megabytes(size)} of GPU memory are needed, but {self.name} has only "
                f"{megabytes(free)} of {megabytes(total)} free: unload a model, or stop other "
                "programs on the GPU"
            ) from error

    def open_shared(self, handle: bytes) -> DeviceMemory:
        """Open GPU memory of another process by its `CUipcMemHandle` (64 bytes).

        The other process still owns the memory.
        """
        return ForeignMemory(handle)

    def pinned(self, size: int) -> PinnedMemory:
        """Allocate `size` bytes of page-locked host memory.

        Raises:
            OutOfMemory: the host has too little free memory.
        """
        try:
            return PinnedMemory(self._driver, size)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{megabytes(size)} of pinned host memory are needed for copies, but less is "
                "free: unload a model, or give the container more memory"
            ) from error

    def copy_in(self, to: DeviceMemory, source: PinnedMemory, size: int, stream: Stream) -> None:
        """Add to a stream a copy of the first `size` bytes from host memory to GPU memory."""
        with failures(self._driver):
            self._driver.memcpy_htod_async(to.address, source.array[:size], stream.native)

    def copy_out(self, to: PinnedMemory, source: DeviceMemory, size: int, stream: Stream) -> None:
        """Add to a stream a copy of the first `size` bytes from GPU memory to host memory."""
        with failures(self._driver):
            self._driver.memcpy_dtoh_async(to.array[:size], source.address, stream.native)

    def capture(self, stream: Stream) -> AbstractContextManager[Capture]:
        """Record the work that a `with` block adds to a stream, as a CUDA graph.

        See `capture` in resources.py.
        """
        return capture(stream)

    def kernel(self, image: bytes, name: str) -> Kernel:
        """Load a kernel by its name from a PTX or cubin image.

        Raises:
            InferenceFailed: the driver rejects the kernel.
        """
        return Kernel(self._driver, image, name)

    def close(self) -> None:
        """Release the GPU. Its primary context stays open. A second call has no effect."""
        if self._context is None:
            return
        context, self._context = self._context, None
        # pycuda only releases a context that it considers current, so the context is pushed first.
        # CUDA does not remove a released primary context from the thread's stack, so it is popped
        # here.
        context.push()
        driver_call("cuCtxPopCurrent")
        context.detach()


def _pycuda() -> Any:
    try:
        driver = import_module("pycuda.driver")
        import_module("cuda.bindings.driver")
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}): {install('pycuda', 'cuda-bindings')} (needs a CUDA "
            "toolkit; docker/gpu.Dockerfile installs all of this)"
        ) from error
    except ImportError as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}): install an NVIDIA driver that supports pycuda's CUDA "
            "version"
        ) from error
    return driver


def megabytes(size: int) -> str:
    """Format a size in bytes as megabytes, e.g. "1,234.5 MB"."""
    return f"{size / 1e6:,.1f} MB"
