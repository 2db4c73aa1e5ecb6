"""Locks directories across threads and processes.

The kernel releases the locks of killed processes. So a process can recognise the temporary
directories of killed processes by their free locks, and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Prefix of the names of temporary directories. The process that uses such a directory holds its
# lock.
_PREFIX = "fovea-tmp-"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for the lock of a directory, and hold it during the `with` block."""
    descriptor = lock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int:
    """Lock a directory until the returned file descriptor is closed.

    `operation` is an operation of `fcntl.flock`. By default, the function does not wait.

    Raises:
        BlockingIOError: another thread or process has the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """Create a temporary directory for the `with` block, with `kind` in its name.

    Temporary directories of killed processes are removed first.
    """
    remove_abandoned()
    folder, owner = _make_owned(kind)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _make_owned(kind: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-"))
        # Try again if another process removed the new directory. Before the directory is locked, it
        # looks like a directory of a killed process.
        with suppress(BlockingIOError, FileNotFoundError):
            owner = lock(folder)
            try:
                if os.path.samestat(folder.lstat(), os.fstat(owner)):
                    return folder, owner
            except FileNotFoundError:
                os.close(owner)


def remove_abandoned() -> None:
    """Remove this user's temporary directories whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # the process is running, or the directory is gone
            found = folder.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            owner = lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(owner)
