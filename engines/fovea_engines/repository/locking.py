"""Locks directories across threads and processes. The kernel releases the locks of dead processes.

So each process can recognise temporary directories of killed processes, and removes them.
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

# Prefix of temporary directories that their owner has locked.
_PREFIX = "fovea-tmp-"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory; wait until it is free."""
    descriptor = lock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int:
    """Lock a directory until the returned descriptor is closed.

    Raises:
        BlockingIOError: another owner has the lock.
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
    """Create a temporary directory for the block, with `kind` in its name.

    Abandoned temporary directories are removed first.
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
        # Another process may consider it abandoned, and remove it, before it is locked.
        with suppress(BlockingIOError, FileNotFoundError):
            owner = lock(folder)
            try:
                if os.path.samestat(folder.lstat(), os.fstat(owner)):
                    return folder, owner
            except FileNotFoundError:
                os.close(owner)


def remove_abandoned() -> None:
    """Remove the temporary directories of this user whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # the process still runs, or the directory was removed meanwhile
            found = folder.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            owner = lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(owner)
