"""Locks folders across threads and processes; the kernel releases the lock of a dead process.

So temporary folders that a killed process left behind are known, and removed by the next one.
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

# Of folders that their owner locks, and no others.
_PREFIX = "fovea-tmp-"


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


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """Make a folder for a while, with the `kind` in its name; abandoned ones are removed first."""
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
        # Another process may take it for abandoned before it is locked.
        with suppress(BlockingIOError, FileNotFoundError):
            owner = lock(folder)
            try:
                if os.path.samestat(folder.lstat(), os.fstat(owner)):
                    return folder, owner
            except FileNotFoundError:
                os.close(owner)


def remove_abandoned() -> None:
    """Remove the temporary folders of this user whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its process lives, or it is gone meanwhile
            found = folder.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            owner = lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(owner)
