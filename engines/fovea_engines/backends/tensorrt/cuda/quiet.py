"""Separates the recording of CUDA graphs from work that may synchronise the whole GPU.

Either one makes the other fail, even in different threads (CUDA C++ Programming Guide, "Prohibited
and Unhandled Operations"). TensorRT does not document which calls synchronise, and CUDA may
synchronise when it loads a kernel. So building, loading, first runs and releases all count as
synchronising work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Quiet:
    """Lets several recordings run at the same time, or several pieces of synchronising work."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._synchronising = 0
        self._recording = 0

    @contextmanager
    def synchronising(self) -> Iterator[None]:
        """Wait until no recording is running (they take milliseconds), then run the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._recording)
            self._synchronising += 1
        try:
            yield
        finally:
            with self._changed:
                self._synchronising -= 1

    @contextmanager
    def recording(self) -> Iterator[bool]:
        """Yield True if the block may record; False during a build, which takes minutes."""
        with self._changed:
            free = not self._synchronising
            self._recording += free
        try:
            yield free
        finally:
            with self._changed:
                self._recording -= free
                self._changed.notify_all()


QUIET = Quiet()
"""Shared by all GPUs of the process; TensorRT uses only the first one."""
