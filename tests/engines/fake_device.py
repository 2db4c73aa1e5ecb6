"""A stand-in for `Device` (TensorRT's `cuda.driver`): the tests run without a GPU.

What happens in streams happens in threads, so that an order which is only hoped for shows. What
is against the rules raises `Misuse` at once, or is noted in `misuse` where a stream finds it.
"""

import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from tests.engines.fake_stream import FakeEvent, FakeStream, Misuse, Owned, Work

from fovea_preprocess.errors import InferenceFailed, OutOfMemory

UNWRITTEN = 0xCD


class FakeMemory(Owned):
    """Host memory behind an address that means nothing to the host."""

    def __init__(self, device: "FakeDevice", size: int, address: int) -> None:
        super().__init__(device, "memory")
        self.size, self.address = size, address
        self.bytes = np.full(size, UNWRITTEN, np.uint8)
        self.busy = threading.Lock()

    def at(self, offset: int) -> "FakePart":
        return FakePart(self, offset)

    def release(self):
        self.device.forget(self)


class FakeShared(FakeMemory):
    """Memory of another process: closed here, it is there still."""

    def release(self):
        pass


class FakePart:
    """A part of a memory; it is open for as long as that."""

    def __init__(self, whole: "FakeMemory | FakePart", offset: int) -> None:
        self._whole = whole
        self.size, self.address = whole.size - offset, whole.address + offset
        self.bytes = whole.bytes[offset:]

    @property
    def open(self) -> bool:
        return self._whole.open

    def at(self, offset: int) -> "FakePart":
        return FakePart(self, offset)

    def close(self) -> None:
        pass


class FakePinned(Owned):
    def __init__(self, device: "FakeDevice", size: int) -> None:
        super().__init__(device, "pinned")
        self.array = np.full(size, UNWRITTEN, np.uint8)

    def release(self):
        self.array.fill(UNWRITTEN)


class FakeGraph(Owned):
    def __init__(self, device: "FakeDevice", work: list[Work]) -> None:
        super().__init__(device, "graph")
        self._work = work

    def launch(self, stream: FakeStream) -> None:
        self.check("launch")
        self.device.fail_if_told("launch", "enqueue")
        for operation, work in self._work:
            stream.enqueue(operation, work)


class FakeCapture:
    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.work: list[Work] | None = None
        self.valid = True

    def graph(self) -> FakeGraph:
        if self.work is None:
            raise Misuse("graph() inside the block that records")
        return FakeGraph(self._device, self.work)


# Under way in any thread: all devices are the same GPU, as the code opens it once for each session.
_recordings: list[FakeCapture] = []
_recording = threading.Lock()


class FakeDevice:
    """A `Device`.

    Attributes:
        alive: how many there are of everything that must be given back.
        misuse: what streams found to be against the rules.
        copied: bytes by direction.
        living: engines and contexts, which must go before the device.
        trace: (operation, stream) in the order in which they began.
        before: called in a stream's thread before each operation; a test may wait in it.
        recording: called while something is recorded.
    """

    name = "Fake GPU"
    capability = (8, 9)

    def __init__(self, total: int = 1 << 30) -> None:
        self.alive: Counter[str] = Counter()
        self.misuse: list[str] = []
        self.copied: Counter[str] = Counter()
        self.trace: list[tuple[str, int]] = []
        self.before: Callable[[str, FakeStream], None] = lambda operation, stream: None
        self.recording: Callable[[], None] = lambda: None
        self.living: weakref.WeakSet[object] = weakref.WeakSet()
        self.closed = False
        self.lost = False
        self._total = total
        self._memories: dict[int, FakeMemory] = {}
        self._lent: dict[bytes, np.ndarray] = {}
        self._streams: dict[int, FakeStream] = {}
        self._handles = iter(range(1, 1 << 30))
        self._next_address = 0x7F00_0000_0000
        self._told: dict[tuple[str, str], list[bool]] = {}
        self._lock = threading.Lock()
        self._thread = threading.local()

    def fail(self, operation: str, when: str = "run", after: int = 0, times: int = 1) -> None:
        """Let an operation fail, once some went well: as it is "enqueue"d, or as it is "run"."""
        self._told[operation, when] = [True] * times + [False] * after

    def crash(self) -> None:
        """From now on every call fails, as after a kernel that has crashed."""
        self.lost = True

    def told_to_fail(self, operation: str, when: str) -> bool:
        with self._lock:
            told = self._told.get((operation, when))
            return bool(told) and told.pop()

    def fail_if_told(self, operation: str, when: str) -> None:
        if self.lost or self.told_to_fail(operation, when):
            raise InferenceFailed(f"{operation} failed, as it was told to")

    def synchronise(self) -> None:
        """Wait for all streams: that fails, and so do all recordings that are under way."""
        with _recording:
            for each in _recordings:
                each.valid = False
            under_way = len(_recordings)
        if under_way:
            raise InferenceFailed("operation not permitted when stream is capturing")

    def check_current(self, what: str) -> None:
        if self.closed:
            raise Misuse(f"{what} after the device was closed")
        if not getattr(self._thread, "depth", 0):
            raise Misuse(f"{what} in a thread where the device is not current")

    def count(self, kind: str, change: int) -> None:
        with self._lock:
            self.alive[kind] += change

    def at(self, address: int, size: int) -> FakeMemory:
        """The memory at an address; of at least so many bytes."""
        memory = self._memories.get(address)
        if memory is None or size > memory.size:
            raise Misuse(f"{size} bytes at {address:#x} are not there")
        return memory

    def stream_of(self, handle: int) -> FakeStream:
        if handle not in self._streams:
            raise Misuse(f"there is no stream {handle}")
        return self._streams[handle]

    def forget(self, memory: FakeMemory) -> None:
        del self._memories[memory.address]

    @contextmanager
    def current(self) -> Iterator[None]:
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    def memory(self) -> tuple[int, int]:
        self.check_current("memory")
        self.fail_if_told("memory", "enqueue")
        return self._total - sum(m.size for m in self._memories.values()), self._total

    def stream(self) -> FakeStream:
        handle = next(self._handles)
        self._streams[handle] = FakeStream(self, handle)
        return self._streams[handle]

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def alloc(self, size: int) -> FakeMemory:
        self.check_current("alloc")
        free, _ = self.memory()
        if not 0 < size <= free:
            raise OutOfMemory(f"{size} bytes are wanted and {free} are free")
        memory = FakeMemory(self, size, self._next_address)
        self._next_address += -(-size // 256) * 256
        self._memories[memory.address] = memory
        return memory

    def lend(self, size: int) -> tuple[bytes, np.ndarray]:
        """What another process has allocated: its handle and its bytes."""
        handle = len(self._lent).to_bytes(64, "big")
        self._lent[handle] = np.full(size, UNWRITTEN, np.uint8)
        return handle, self._lent[handle]

    def open_shared(self, handle: bytes) -> FakeShared:
        self.check_current("open_shared")
        self.fail_if_told("open_shared", "enqueue")
        if handle not in self._lent:
            raise InferenceFailed("no process has lent that")
        memory = FakeShared(self, len(self._lent[handle]), self._next_address)
        memory.bytes = self._lent[handle]
        return memory

    def pinned(self, size: int) -> FakePinned:
        return FakePinned(self, size)

    def copy_in(self, to: FakeMemory, source: FakePinned, size: int, stream: FakeStream) -> None:
        self._check_copy(to, source, size)
        was = zlib.crc32(source.array[:size])

        def copy() -> None:
            if zlib.crc32(source.array[:size]) != was:
                raise Misuse("pinned memory was written to before it was copied")
            self._check_copy(to, source, size, in_stream=True)
            to.bytes[:size] = source.array[:size]
            self.copied["in"] += size

        stream.enqueue("copy_in", copy)

    def copy_out(self, to: FakePinned, source: FakeMemory, size: int, stream: FakeStream) -> None:
        self._check_copy(source, to, size)
        # Whoever reads before the copy is done reads this.
        to.array[:size] = UNWRITTEN

        def copy() -> None:
            self._check_copy(source, to, size, in_stream=True)
            to.array[:size] = source.bytes[:size]
            self.copied["out"] += size

        stream.enqueue("copy_out", copy)

    def _check_copy(
        self, memory: FakeMemory, pinned: FakePinned, size: int, *, in_stream: bool = False
    ) -> None:
        if not in_stream:
            self.check_current("copy")
        if not (memory.open and pinned.open):
            raise Misuse("a copy of memory that was closed")
        if size > min(memory.size, len(pinned.array)):
            raise Misuse(f"a copy of {size} bytes goes beyond the end")

    @contextmanager
    def capture(self, stream: FakeStream) -> Iterator[FakeCapture]:
        self.fail_if_told("capture", "enqueue")
        capture = FakeCapture(self)
        stream.recording = recorded = []
        with _recording:
            _recordings.append(capture)
        try:
            self.recording()
            yield capture
        finally:
            stream.recording = None
            with _recording:
                _recordings.remove(capture)
        if not capture.valid:
            raise InferenceFailed("operation failed due to a previous error during capture")
        capture.work = recorded

    def kernel(self, image: bytes, name: str) -> NoReturn:
        self.check_current("kernel")
        raise InferenceFailed(f"no stand-in runs the PTX of {name}; host_kernel.py has one")

    def close(self) -> None:
        alive = {kind: count for kind, count in self.alive.items() if count}
        if alive:
            raise Misuse(f"the device was closed before {alive}")
        if self.living:
            raise Misuse(f"the device was closed under {list(self.living)}")
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


@contextmanager
def fake_gpu(total: int = 1 << 30, kind: type[FakeDevice] = FakeDevice) -> Iterator[FakeDevice]:
    """A device on which, in the end, nothing is alive and nothing was against the rules."""
    device = kind(total)
    yield device
    assert device.misuse == []
    assert +device.alive == Counter()
