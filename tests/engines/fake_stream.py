"""Streams and events of the stand-in for a GPU, and the rules for all that it hands out."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from fovea_preprocess.errors import InferenceFailed

PATIENCE_S = 30
UNTRACED = ("synchronize", "record", "wait")

Work = tuple[str, Callable[[], None]]


class Misuse(AssertionError):
    """What a real GPU would answer with wrong numbers or a crash."""


class Owned:
    """Something that must be given back."""

    def __init__(self, device: Any, kind: str) -> None:
        device.check_current(kind)
        device.count(kind, 1)
        self.device, self.kind, self.open = device, kind, True

    def check(self, what: str) -> None:
        self.device.check_current(what)
        if not self.open:
            raise Misuse(f"{what} after the {self.kind} was closed")

    def close(self) -> None:
        self.device.check_current(f"close {self.kind}")
        if self.open:
            self.open = False
            self.device.count(self.kind, -1)
            self.release()

    def release(self) -> None:
        pass


class FakeStream(Owned):
    """Runs what is enqueued, in order, in a thread of its own."""

    def __init__(self, device: Any, handle: int) -> None:
        super().__init__(device, "stream")
        self.handle = handle
        self.recording: list[Work] | None = None
        self._error: str | None = None
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"stream-{handle}", daemon=True)
        self._thread.start()

    def enqueue(self, operation: str, work: Callable[[], None]) -> None:
        self.check(operation)
        self.device.fail_if_told(operation, "enqueue")
        if self.recording is None:
            self._work.put((operation, work))
        else:
            self.recording.append((operation, work))

    def wait(self, event: "FakeEvent") -> None:
        reached = event.reached
        self.enqueue("wait", lambda: reached.wait(PATIENCE_S))

    def synchronize(self) -> None:
        self.check("synchronize")
        if self.recording is not None:
            raise InferenceFailed("a stream that records cannot be waited for")
        done = threading.Event()
        self._work.put(("synchronize", done.set))
        if not done.wait(PATIENCE_S):
            raise Misuse("a stream hangs")
        if (error := self.take_error()) is not None:
            raise InferenceFailed(error)

    def take_error(self) -> str | None:
        error, self._error = self._error, None
        return "the device has crashed" if self.device.lost else error

    def release(self):
        self._work.put(None)
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            operation, work = item
            try:
                if operation not in UNTRACED:
                    self.device.before(operation, self)
                    self.device.fail_if_told(operation, "run")
                    self.device.trace.append((operation, self.handle))
                work()
            except (InferenceFailed, threading.BrokenBarrierError) as error:
                self._error = str(error) or "nobody came"
            except Exception as error:  # noqa: BLE001  whatever it is, the test must hear of it
                self.device.misuse.append(repr(error))


class FakeEvent(Owned):
    def __init__(self, device: Any) -> None:
        super().__init__(device, "event")
        self.reached = threading.Event()
        self.reached.set()
        self._error: str | None = None
        self._at = 0.0

    def record(self, stream: FakeStream) -> None:
        self.check("record")
        self.reached = reached = threading.Event()

        def arrive() -> None:
            self._error, self._at = stream.take_error(), time.monotonic()
            reached.set()

        stream.enqueue("record", arrive)

    def synchronize(self) -> None:
        self.check("synchronize")
        if not self.reached.wait(PATIENCE_S):
            raise Misuse("an event that is never reached")
        if self._error is not None:
            raise InferenceFailed(self._error)

    def milliseconds_since(self, earlier: "FakeEvent") -> float:
        return (self._at - earlier._at) * 1e3
