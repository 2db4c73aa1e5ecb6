"""Writes files with errors that name the space a full disk lacks; digests; exchanges folders."""

from __future__ import annotations

import codecs
import ctypes
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fovea_preprocess.errors import NotFound


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


def text_of(content: bytes) -> str:
    """Decode a text that people wrote: UTF-8, or what a byte order mark says, as of Windows."""
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if marked else "utf-8-sig")


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes, as hex; `NotFound` if there is no such file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not there") from error


def json_sha256(value: Any) -> str:
    """Return the sha256 of a value's canonical JSON form, as hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
