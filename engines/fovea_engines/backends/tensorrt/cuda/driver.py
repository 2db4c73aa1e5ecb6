"""Opens a GPU with pycuda in the primary context, which TensorRT also uses.

Tests have a mock of `Device`; tests/device_contract.py tests both.
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

_ADVICE = "nvidia-smi must list it, also in a container (docker run --gpus all)"


def open_device(index: int = 0) -> Device:
    """Open a GPU by its index in the driver's order, which CUDA_VISIBLE_DEVICES changes.

    Raises:
        BackendUnavailable: pycuda, the driver or the GPU is missing; the message has the remedy.
    """
    if gpu_here() is None:
        raise BackendUnavailable(f"no NVIDIA GPU or no driver was found: {_ADVICE}")
    driver = _pycuda()
    try:
        driver.init()
        count = driver.Device.count()
        if not 0 <= index < count:
            raise BackendUnavailable(f"there is no GPU {index}; there are {count}, the first is 0")
        _retain(index)
        return Device(driver, driver.Device(index))
    except (driver.Error, InferenceFailed) as error:
        raise BackendUnavailable(f"no GPU can be used ({error}): {_ADVICE}") from error


_retained: set[int] = set()
_retaining = Lock()


def _retain(index: int) -> None:
    """Keep the primary context of a GPU for the life of the process.

    Otherwise it would end with its last user. Kernels that TensorRT caches in it, and objects that
    an exception still references, would then be invalid (NVIDIA/TensorRT#1632).
    """
    with _retaining:
        if index not in _retained:
            driver_call("cuDevicePrimaryCtxRetain", driver_call("cuDeviceGet", index))
            _retained.add(index)


class Device(Closing):
    """One GPU. Close everything that was created from it before it.

    Any thread may use it inside `current()`. If the GPU does not respond any more, every method
    raises `InferenceFailed`.

    Attributes:
        name: name in the driver, e.g. "NVIDIA H200".
        capability: compute capability, (major, minor).
    """

    def __init__(self, driver: Any, device: Any) -> None:
        self.name: str = device.name()
        self.capability: tuple[int, int] = device.compute_capability()
        self._driver = driver
        self._context = device.retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current device of the calling thread; later restore the previous one."""
        with failures(self._driver):
            self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    def memory(self) -> tuple[int, int]:
        """Return the free and the total memory, bytes."""
        with failures(self._driver):
            free, total = self._driver.mem_get_info()
        return free, total

    def stream(self) -> Stream:
        """Create a stream that does not wait for the default stream."""
        return Stream(self._driver)

    def event(self) -> Event:
        """Create an event that measures time."""
        return Event(self._driver)

    def alloc(self, size: int) -> DeviceMemory:
        """Allocate `size` bytes on the GPU.

        Raises:
            OutOfMemory: the message has the free and the total memory.
        """
        try:
            return AllocatedMemory(self._driver, size)
        except OutOfMemory as error:
            free, total = self.memory()
            raise OutOfMemory(
                f"{megabytes(size)} are needed, and {self.name} has {megabytes(free)} of "
                f"{megabytes(total)} free; unload a model, or stop what else uses the GPU"
            ) from error

    def open_shared(self, handle: bytes) -> DeviceMemory:
        """Open memory of another process by its `CUipcMemHandle` (64 bytes).

        That process still owns it.
        """
        return ForeignMemory(handle)

    def pinned(self, size: int) -> PinnedMemory:
        """Allocate `size` page-locked bytes on the host.

        Raises:
            OutOfMemory: the host has too little free memory.
        """
        try:
            return PinnedMemory(self._driver, size)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{megabytes(size)} of pinned host memory are needed for copies, and less is "
                "free; unload a model, or give the container more memory"
            ) from error

    def copy_in(self, to: DeviceMemory, source: PinnedMemory, size: int, stream: Stream) -> None:
        """Enqueue a copy of the first `size` bytes to the GPU."""
        with failures(self._driver):
            self._driver.memcpy_htod_async(to.address, source.array[:size], stream.native)

    def copy_out(self, to: PinnedMemory, source: DeviceMemory, size: int, stream: Stream) -> None:
        """Enqueue a copy of the first `size` bytes to the host."""
        with failures(self._driver):
            self._driver.memcpy_dtoh_async(to.array[:size], source.address, stream.native)

    def capture(self, stream: Stream) -> AbstractContextManager[Capture]:
        """Record the work that the block enqueues instead of running it; see `capture`."""
        return capture(stream)

    def kernel(self, image: bytes, name: str) -> Kernel:
        """Load a kernel from a PTX or cubin image.

        Raises:
            InferenceFailed: the driver rejects the kernel.
        """
        return Kernel(self._driver, image, name)

    def close(self) -> None:
        """Release the device; the primary context stays. A second call has no effect."""
        if self._context is None:
            return
        context, self._context = self._context, None
        # pycuda releases only a context that it considers current. CUDA does not remove a primary
        # context from the thread's stack by itself.
        context.push()
        driver_call("cuCtxPopCurrent")
        context.detach()


def _pycuda() -> Any:
    try:
        driver = import_module("pycuda.driver")
        import_module("cuda.bindings.driver")
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}): {install('pycuda', 'cuda-bindings')}, which need a "
            "CUDA toolkit; docker/gpu.Dockerfile installs everything"
        ) from error
    except ImportError as error:
        raise BackendUnavailable(
            f"no GPU can be used ({error}); install an NVIDIA driver for the CUDA version of "
            "pycuda, or newer"
        ) from error
    return driver


def megabytes(size: int) -> str:
    """Format bytes in megabytes, e.g. "1,234.5 MB"."""
    return f"{size / 1e6:,.1f} MB"
