"""Keeps apart recordings of CUDA graphs and work that may synchronise the whole GPU.

If both happen at the same time, even in different threads, they fail (CUDA C++ Programming Guide,
"Prohibited and Unhandled Operations"). TensorRT does not document which calls synchronise, and CUDA
may synchronise when it loads a kernel. So the code treats builds, loading, first runs and releases
of engines as synchronising work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Quiet:
    """A lock for two kinds of work.

    Work of one kind may run in parallel, but not with the other kind.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._synchronising = 0
        self._recording = 0

    @contextmanager
    def synchronising(self) -> Iterator[None]:
        """Wait until no recording is running, and then run the `with` block.

        A recording takes only milliseconds.
        """
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
        """Yield whether the `with` block may record a CUDA graph.

        The method does not wait for synchronising work, because a build takes minutes. It yields
        False instead.
        """
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
"""The lock of the process. One lock is enough, because TensorRT uses only the first GPU."""
