"""Defines the interface to a GPU. `driver` implements it with pycuda; tests have a substitute."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Stream(Protocol):
    """Runs work in order; the work of different streams overlaps.

    Attributes:
        handle: the CUstream, for TensorRT.
    """

    handle: int

    def wait(self, event: Event) -> None:
        """Make all later work wait for an event, without blocking this thread."""
        ...

    def synchronize(self) -> None:
        """Block until all enqueued work is done, without the GIL.

        Raises:
            InferenceFailed: enqueued work has failed.
        """
        ...

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        ...


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Stream) -> None:
        """Move it to the end of the work enqueued in a stream."""
        ...

    def synchronize(self) -> None:
        """Block until the point is reached, without the GIL."""
        ...

    def milliseconds_since(self, earlier: Event) -> float:
        """Return the time between two events that were both reached."""
        ...

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        ...


class DeviceMemory(Protocol):
    """Memory on the GPU.

    Attributes:
        address: of the first byte.
        size: bytes.
    """

    address: int
    size: int

    def at(self, offset: int) -> DeviceMemory:
        """Return the bytes from an offset, valid as long as the whole; closing it is not needed."""
        ...

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        ...


class PinnedMemory(Protocol):
    """Page-locked memory of the host, which the GPU copies from and to by itself.

    Attributes:
        array: uint8 [size].
    """

    array: NDArray[np.uint8]

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        ...


class Graph(Protocol):
    """Recorded work, launched as one."""

    def launch(self, stream: Stream) -> None:
        """Enqueue all of it."""
        ...

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        ...


class Kernel(Protocol):
    """A function that runs on the GPU."""

    def __call__(
        self, stream: Stream, grid: tuple[int, int, int], block: tuple[int, int, int], *args: Any
    ) -> None:
        """Enqueue the kernel.

        Args:
            stream: the stream to enqueue in.
            grid: number of blocks.
            block: number of threads per block.
            args: numpy scalars, and addresses as np.uint64, in the order of its parameters.
        """
        ...

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        ...


class Capture(Protocol):
    """A recording in progress."""

    def graph(self) -> Graph:
        """Return the recorded graph, ready to launch; after the end of the `with` block."""
        ...


class Device(Protocol):
    """One GPU. A context manager; everything created from it must be closed before it.

    Any thread may call it inside `current()`.

    Attributes:
        name: from the driver, e.g. "NVIDIA H200".
        capability: (major, minor) of its compute capability.
    """

    name: str
    capability: tuple[int, int]

    def current(self) -> AbstractContextManager[None]:
        """Make this the device of the calling thread, and restore the previous one afterwards."""
        ...

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes.

        Raises:
            InferenceFailed: the device does not respond any more.
        """
        ...

    def stream(self) -> Stream:
        """Create a stream that does not wait for the default one."""
        ...

    def event(self) -> Event:
        """Create an event that records time."""
        ...

    def alloc(self, size: int) -> DeviceMemory:
        """Allocate bytes on the GPU.

        Raises:
            OutOfMemory: there is not enough; the message has the figures.
        """
        ...

    def open_shared(self, handle: bytes) -> DeviceMemory:
        """Open memory that another process has allocated on this GPU, and that it keeps.

        Args:
            handle: the 64 bytes of its `CUipcMemHandle`.

        Raises:
            InferenceFailed: the handle is invalid, or not from another process on this GPU.
        """
        ...

    def pinned(self, size: int) -> PinnedMemory:
        """Allocate page-locked bytes of the host.

        Raises:
            OutOfMemory: there is not enough.
        """
        ...

    def copy_in(self, to: DeviceMemory, source: PinnedMemory, size: int, stream: Stream) -> None:
        """Enqueue a copy of the first `size` bytes to the GPU."""
        ...

    def copy_out(self, to: PinnedMemory, source: DeviceMemory, size: int, stream: Stream) -> None:
        """Enqueue a copy of the first `size` bytes to the host."""
        ...

    def capture(self, stream: Stream) -> AbstractContextManager[Capture]:
        """Record the work enqueued inside the block instead of running it (thread-local mode).

        Raises:
            InferenceFailed: some of it cannot be recorded; the stream is as before.
        """
        ...

    def kernel(self, image: bytes, name: str) -> Kernel:
        """Load a kernel of a PTX or cubin image.

        Raises:
            InferenceFailed: the driver rejects the image, or the image lacks the kernel.
        """
        ...

    def close(self) -> None:
        """Release the device. Calling it again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
