"""Writes files with errors that name the space a full disk lacks; exchanges folders."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write a file; raises as `writing`."""
    with writing(path, len(content)):
        path.write_bytes(content)


@contextmanager
def writing(path: Path, size: int) -> Iterator[None]:
    """Explain an error of the block, which writes `size` bytes to a file.

    The `OSError` has the same number, the file's name, and the sizes where space is lacking.
    """
    try:
        yield
    except OSError as error:
        number, reason = error.errno or errno.EIO, error.strerror or str(error)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            # The space that the file already takes was free before.
            written = path.stat().st_size if path.exists() else 0
            free = shutil.disk_usage(path.parent).free + written
            reason = {
                errno.ENOSPC: f"the disk is full: {_megabytes(free)} were free",
                errno.EDQUOT: "the disk quota is used up",
                errno.EFBIG: "a file may not be that large here, see ulimit -f",
            }[number] + f", {_megabytes(size)} are needed"
        raise OSError(number, reason, os.fspath(path)) from error


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"


# From Linux' fcntl.h and fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def swap(one: Path, other: Path) -> None:
    """Exchange the paths of two folders; `OSError` where the file system cannot (NFS)."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(other))
