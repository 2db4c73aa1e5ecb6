"""Streams, events, memory, kernels and CUDA graphs of a GPU.

The GPU must be the calling thread's current device in every call. The module uses pycuda, and
cuda-bindings for CUDA graphs and for memory of other processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from traceback import clear_frames
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Closing
from fovea_preprocess.errors import InferenceFailed, OutOfMemory

# Value of CU_STREAM_NON_BLOCKING, which pycuda does not define.
_NON_BLOCKING = 1


class Stream:
    """A queue of GPU work that runs in order. Work in different streams may overlap.

    Attributes:
        native: stream object of pycuda.
        handle: address of the `CUstream`, for TensorRT.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        with failures(driver):
            self.native = driver.Stream(_NON_BLOCKING)
        self.handle: int = self.native.handle

    def wait(self, event: Event) -> None:
        """Make all later work in the stream wait for an event. The calling thread does not wait."""
        with failures(self._driver):
            self.native.wait_for_event(event.native)

    def synchronize(self) -> None:
        """Wait until all work in the stream is done. The waiting thread releases the GIL.

        Raises:
            InferenceFailed: a part of the work failed.
        """
        with failures(self._driver):
            self.native.synchronize()

    def close(self) -> None:
        """Release the stream. A second call has no effect."""
        self.native = None


class Event:
    """A point in a stream for which threads and other streams can wait."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        with failures(driver):
            # A waiting thread sleeps instead of spinning, so other threads can use its core to
            # decode images.
            self.native = driver.Event(driver.event_flags.BLOCKING_SYNC)

    def record(self, stream: Stream) -> None:
        """Move the event to the current end of a stream."""
        with failures(self._driver):
            self.native.record(stream.native)

    def synchronize(self) -> None:
        """Wait until the stream has reached the event. The waiting thread releases the GIL."""
        with failures(self._driver):
            self.native.synchronize()

    def milliseconds_since(self, earlier: Event) -> float:
        """Return the time in milliseconds between two events. Both must have been reached."""
        with failures(self._driver):
            return float(self.native.time_since(earlier.native))

    def close(self) -> None:
        """Release the event. A second call has no effect."""
        self.native = None


class DeviceMemory(Closing):
    """Memory on the GPU.

    Attributes:
        address: GPU address of the first byte.
        size: size in bytes.
    """

    address: int
    size: int

    def at(self, offset: int) -> DeviceMemory:
        """Return the part of the memory that starts at a byte offset.

        The part is valid until this memory is closed. It does not need to be closed itself.
        """
        return _Part(self, offset)


class AllocatedMemory(DeviceMemory):
    """GPU memory that this process allocated."""

    def __init__(self, driver: Any, size: int) -> None:
        with failures(driver):
            self._allocation = driver.mem_alloc(size)
        self.address = int(self._allocation)
        self.size = size

    def close(self) -> None:
        """Release the memory. A second call has no effect."""
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class ForeignMemory(DeviceMemory):
    """GPU memory of another process, opened by its `CUipcMemHandle` (64 bytes)."""

    def __init__(self, handle: bytes) -> None:
        bindings = import_module("cuda.bindings.driver")
        wanted = bindings.CUipcMemHandle()
        ctypes.memmove(wanted.getPtr(), handle, len(handle))
        flag = bindings.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        self._opened = driver_call("cuIpcOpenMemHandle", wanted, flag)
        self.address = int(self._opened)
        _, self.size = driver_call("cuMemGetAddressRange", self._opened)

    def close(self) -> None:
        """Unmap the memory. The other process still owns it. A second call has no effect."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            driver_call("cuIpcCloseMemHandle", opened)


class _Part(DeviceMemory):
    """A part of a `DeviceMemory` object. It keeps a reference to this object."""

    def __init__(self, whole: DeviceMemory, offset: int) -> None:
        self._whole = whole
        self.address = whole.address + offset
        self.size = whole.size - offset

    def close(self) -> None:
        """Do nothing, because the whole memory is closed separately."""


class PinnedMemory:
    """Page-locked host memory, which the GPU can copy directly.

    Attributes:
        array: the memory as uint8 [size].
    """

    def __init__(self, driver: Any, size: int) -> None:
        with failures(driver):
            self.array: NDArray[np.uint8] = driver.pagelocked_empty(size, np.uint8)
        self._allocation: Any = self.array.base

    def close(self) -> None:
        """Release the memory. A second call has no effect."""
        if self._allocation is not None:
            self.array = np.empty(0, np.uint8)
            self._allocation.free()
            self._allocation = None


class Kernel:
    """A function that runs on the GPU."""

    def __init__(self, driver: Any, image: bytes, name: str) -> None:
        self._driver = driver
        try:
            # pycuda's function object keeps the module alive.
            self._function = driver.module_from_buffer(image).get_function(name)
        except driver.Error as error:
            raise InferenceFailed(
                f"the driver cannot load the kernel {name!r} ({error}): update the driver to the "
                "CUDA version that compiled the kernel, or build the engine again on this machine"
            ) from error

    def __call__(
        self, stream: Stream, grid: tuple[int, int, int], block: tuple[int, int, int], *args: Any
    ) -> None:
        """Add the kernel to a stream.

        Args:
            stream: stream of the kernel.
            grid: number of blocks in each dimension.
            block: number of threads of a block in each dimension.
            *args: arguments of the kernel as NumPy scalars; addresses are np.uint64.
        """
        with failures(self._driver):
            self._function(*args, grid=grid, block=block, stream=stream.native)

    def close(self) -> None:
        """Release the kernel. A second call has no effect."""
        self._function = None


class Graph:
    """A CUDA graph: recorded work that one call launches."""

    def __init__(self, graph: Any) -> None:
        self._executable = driver_call("cuGraphInstantiate", graph, 0)

    def launch(self, stream: Stream) -> None:
        """Add all recorded work to a stream."""
        driver_call("cuGraphLaunch", self._executable, stream.handle)

    def close(self) -> None:
        """Release the graph. A second call has no effect."""
        if self._executable is not None:
            executable, self._executable = self._executable, None
            driver_call("cuGraphExecDestroy", executable)


class Capture:
    """The result of a `with capture(...)` block. The graph exists after the block."""

    recorded: Graph | None = None

    def graph(self) -> Graph:
        """Return the recorded graph, ready to launch. Call this method after the `with` block."""
        if self.recorded is None:
            raise RuntimeError("the graph is not recorded yet")
        return self.recorded


@contextmanager
def capture(stream: Stream) -> Iterator[Capture]:
    """Record the work that the `with` block adds to a stream, instead of running it.

    Other threads may use the GPU at the same time, because the recording uses CUDA's thread-local
    mode.

    Raises:
        InferenceFailed: a part of the work cannot be recorded. The stream can still be used.
    """
    modes = import_module("cuda.bindings.driver").CUstreamCaptureMode
    mode = modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    driver_call("cuStreamBeginCapture", stream.handle, mode)
    recording = Capture()
    try:
        yield recording
    except BaseException:
        _abandon(stream)
        raise
    graph = driver_call("cuStreamEndCapture", stream.handle)
    try:
        recording.recorded = Graph(graph)
    finally:
        driver_call("cuGraphDestroy", graph)


def _abandon(stream: Stream) -> None:
    """End a failed recording. A stream continues to record even after it has rejected work."""
    try:
        graph = driver_call("cuStreamEndCapture", stream.handle)
    except InferenceFailed:
        return
    driver_call("cuGraphDestroy", graph)


def let_go(error: BaseException | None) -> None:
    """Clear the local variables in the stack frames of an exception and its causes.

    The variables may reference an engine. An engine must be released before its device.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


_FAULTED = "if all later calls fail too, restart the process"


def driver_call(name: str, *arguments: Any) -> Any:
    """Call a function of the CUDA driver by its name, and return its results.

    Returns:
        None for a function without a result, the result for one result, and a list for several
        results.

    Raises:
        InferenceFailed: the call failed. The message has CUDA's name of the error.
    """
    result, *values = getattr(import_module("cuda.bindings.driver"), name)(*arguments)
    if result != type(result).CUDA_SUCCESS:
        raise InferenceFailed(f"{name} failed ({result.name}); {_FAULTED}")
    return values if len(values) > 1 else next(iter(values), None)


@contextmanager
def failures(driver: Any) -> Iterator[None]:
    """Convert errors of pycuda in the `with` block to `OutOfMemory` or `InferenceFailed`."""
    try:
        yield
    except driver.MemoryError as error:
        raise OutOfMemory(f"{error}: unload a model, or stop other programs on the GPU") from error
    except driver.Error as error:
        raise InferenceFailed(f"{error}; {_FAULTED}") from error
