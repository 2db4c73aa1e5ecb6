"""Writes files with clear errors for full disks, computes digests, and swaps directories."""

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
    """Write a file.

    Raises:
        OSError: the file cannot be written. The message has the details of `writing`.
    """
    with writing(path, len(content)):
        path.write_bytes(content)


@contextmanager
def writing(path: Path, size: int) -> Iterator[None]:
    """Add details to an OSError in a `with` block that writes `size` bytes to the file `path`.

    Raises:
        OSError: the original error, with the name of the file. If the disk is full, the message
            also has the free and the required space.
    """
    try:
        yield
    except OSError as error:
        number, reason = error.errno or errno.EIO, error.strerror or str(error)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            # Count the bytes that were written to the file as free, because they were free before
            # the write.
            written = path.stat().st_size if path.exists() else 0
            free = shutil.disk_usage(path.parent).free + written
            reason = {
                errno.ENOSPC: f"the disk is full: {_megabytes(free)} were free",
                errno.EDQUOT: "the disk quota is used up",
                errno.EFBIG: "the file exceeds the limit for file sizes (see ulimit -f)",
            }[number] + f", {_megabytes(size)} are needed"
        raise OSError(number, reason, os.fspath(path)) from error


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"


# Constants of Linux's fcntl.h and fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def swap(one: Path, other: Path) -> None:
    """Exchange the paths of two directories atomically.

    Raises:
        OSError: the file system does not support an exchange, e.g. NFS.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(other))


def text_of(content: bytes) -> str:
    """Decode the content of a text file as UTF-8, or as UTF-16 if it has a UTF-16 byte order mark.

    Some Windows programs write UTF-16.
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if marked else "utf-8-sig")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal.

    Raises:
        NotFound: the file does not exist.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error


def json_sha256(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON form in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
