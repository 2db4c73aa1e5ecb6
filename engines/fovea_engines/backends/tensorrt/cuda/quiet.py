"""Keeps recordings of CUDA graphs apart from work that may synchronise the whole GPU.

Each of the two fails the other, even where they are of different threads (CUDA C++ Programming
Guide, "Prohibited and Unhandled Operations"). TensorRT does not say which of its calls synchronise,
and CUDA may do so as it loads a kernel, so all that builds, loads, runs for the first time or
releases counts as such work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Quiet:
    """Lets any number of recordings go on at once, or any number of what would fail them."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._synchronising = 0
        self._recording = 0

    @contextmanager
    def synchronising(self) -> Iterator[None]:
        """Begin the block when no recording is under way: they take milliseconds."""
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
        """Yield whether the block may record: not while a build goes on, which takes minutes."""
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
"""For all GPUs of the process: TensorRT uses the first alone."""
