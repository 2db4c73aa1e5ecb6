"""Locks folders across threads and processes; the kernel releases the lock of a dead process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; waits while another has it."""
    descriptor = lock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int:
    """Lock a folder until the descriptor is closed; BlockingIOError: another has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
