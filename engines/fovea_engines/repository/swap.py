"""Exchanges two folders in one atomic step."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# From Linux' fcntl.h and fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def swap(one: Path, other: Path) -> None:
    """Exchange the paths of two folders of a file system.

    Raises:
        OSError: a path is missing or cannot be written, or this file system does not support it
            (NFS).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(other))
