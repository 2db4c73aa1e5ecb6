"""What a session needs of a GPU. `driver` does it with pycuda; the tests have a stand-in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Stream(Protocol):
    """Work in order; that of different streams overlaps.

    Attributes:
        handle: the CUstream, as TensorRT takes it.
    """

    handle: int

    def wait(self, event: Event) -> None:
        """Let everything enqueued from now on wait for an event, without blocking this thread."""
        ...

    def synchronize(self) -> None:
        """Block until everything enqueued is done, without the GIL.

        Raises:
            InferenceFailed: something enqueued has failed.
        """
        ...

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        ...


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Stream) -> None:
        """Move it to the end of what is enqueued in a stream."""
        ...

    def synchronize(self) -> None:
        """Block until the point is reached, without the GIL."""
        ...

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two events that both were reached."""
        ...

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        ...


class DeviceMemory(Protocol):
    """Bytes on the GPU.

    Attributes:
        address: of the first.
        size: bytes.
    """

    address: int
    size: int

    def at(self, offset: int) -> DeviceMemory:
        """The bytes from an offset on, good for as long as these; it need not be closed."""
        ...

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        ...


class PinnedMemory(Protocol):
    """Bytes of the host that the GPU copies from and to by itself.

    Attributes:
        array: uint8 [size].
    """

    array: NDArray[np.uint8]

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        ...


class Graph(Protocol):
    """Enqueued work that was recorded, and is launched as one."""

    def launch(self, stream: Stream) -> None:
        """Enqueue all of it."""
        ...

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        ...


class Kernel(Protocol):
    """A function that runs on the GPU."""

    def __call__(
        self, stream: Stream, grid: tuple[int, int, int], block: tuple[int, int, int], *args: Any
    ) -> None:
        """Enqueue it.

        Args:
            stream: where.
            grid: blocks.
            block: threads.
            args: numpy scalars, and addresses as np.uint64, in the order of its parameters.
        """
        ...

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        ...


class Capture(Protocol):
    """A recording in progress."""

    def graph(self) -> Graph:
        """What was recorded, made ready to launch; after the `with` block has ended."""
        ...


class Device(Protocol):
    """One GPU. A context manager; everything made of it is given back before it is.

    Any thread may call it inside `current()`.

    Attributes:
        name: as the driver says it, e.g. "NVIDIA H200".
        capability: (major, minor) of its compute capability.
    """

    name: str
    capability: tuple[int, int]

    def current(self) -> AbstractContextManager[None]:
        """Make this the device of the calling thread, and put back what was."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes.

        Raises:
            InferenceFailed: the device does not answer any more.
        """
        ...

    def stream(self) -> Stream:
        """A new stream that does not wait for the default one."""
        ...

    def event(self) -> Event:
        """A new event that takes times."""
        ...

    def alloc(self, size: int) -> DeviceMemory:
        """New bytes on the GPU.

        Raises:
            OutOfMemory: there are not that many; the message has the figures.
        """
        ...

    def open_shared(self, handle: bytes) -> DeviceMemory:
        """Bytes that another process has allocated on this GPU; closing leaves them to it.

        Args:
            handle: the 64 bytes of its `CUipcMemHandle`.

        Raises:
            InferenceFailed: it is no handle, or none of another process on this GPU.
        """
        ...

    def pinned(self, size: int) -> PinnedMemory:
        """New bytes of the host.

        Raises:
            OutOfMemory: likewise.
        """
        ...

    def copy_in(self, to: DeviceMemory, source: PinnedMemory, size: int, stream: Stream) -> None:
        """Enqueue a copy of the first `size` bytes to the GPU."""
        ...

    def copy_out(self, to: PinnedMemory, source: DeviceMemory, size: int, stream: Stream) -> None:
        """Enqueue a copy of the first `size` bytes to the host."""
        ...

    def capture(self, stream: Stream) -> AbstractContextManager[Capture]:
        """Record what is enqueued inside the block in place of doing it (thread-local mode).

        Raises:
            InferenceFailed: something in it cannot be recorded; the stream is as before.
        """
        ...

    def kernel(self, image: bytes, name: str) -> Kernel:
        """A kernel of a PTX or cubin image.

        Raises:
            InferenceFailed: the driver does not take the image, or has no such kernel in it.
        """
        ...

    def close(self) -> None:
        """Let go of the device. Calling it again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
