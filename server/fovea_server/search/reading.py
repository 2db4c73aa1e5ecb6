"""Reads the arrays of an index, whose sizes are checked before they take memory."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fovea_preprocess.plural import counted

# A million vectors of 512 numbers.
MAX_BYTES = 2 << 30

# Forms of an array's header, by the version that its first bytes name.
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK = 1 << 20


def read_arrays(path: Path, forms: Mapping[str, tuple[str, int]]) -> dict[str, NDArray[Any]]:
    """Read the arrays of .npz that have these names, or `vectors` from .npy.

    A form is the kind of a dtype, as NumPy's `dtype.kind`, and a number of dimensions.

    Raises:
        ValueError: an array has another form, or the file more than `MAX_BYTES`.
        OSError, LookupError, EOFError, ArithmeticError, RuntimeError, MemoryError,
            zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError: it is damaged.
    """
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return {"vectors": _read(file, "vectors", forms, os.fstat(file.fileno()).st_size)}
    with zipfile.ZipFile(path) as archive:
        found: dict[str, NDArray[Any]] = {}
        left = MAX_BYTES
        for name in forms:
            if f"{name}.npy" not in archive.namelist():
                continue
            with _member(archive, f"{name}.npy", left) as (file, size):
                found[name] = _read(file, name, forms, size)
            left -= size
        return found


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, most: int) -> Iterator[tuple[IO[bytes], int]]:
    info = archive.getinfo(name)
    if info.compress_type not in _PLAIN:
        raise ValueError(f"{name} is compressed in a way that is not read")
    _check_size(info.file_size, most)
    with archive.open(info) as file:
        yield file, info.file_size
        file.read(1)  # only its end checks the sum of all bytes


def _read(
    file: IO[bytes], name: str, forms: Mapping[str, tuple[str, int]], size: int
) -> NDArray[Any]:
    _check_size(size, MAX_BYTES)
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{name} has the header of another version of NumPy's format")
    shape, by_columns, dtype = _HEADERS[version](file)
    kind, dimensions = forms[name]
    if dtype.kind != kind or not dtype.itemsize or len(shape) != dimensions or 0 in shape[1:]:
        wanted = {"f": "float", "U": "text", "u": "unsigned", "i": "signed"}[kind]
        raise ValueError(
            f"{name} is {dtype} {list(shape)}, where it must be {wanted} of "
            f"{counted(dimensions, 'dimension')}"
        )
    told, had = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or told != had:
        raise ValueError(
            f"{name} has a header of {list(shape)}, {told:,} bytes, and {had:,} follow it"
        )
    array: NDArray[Any] = np.empty(math.prod(shape), dtype)
    view = array.view(np.uint8).data
    for start in range(0, len(view), _CHUNK):
        part = view[start : start + _CHUNK]
        if (data := file.read(len(part))) and len(data) == len(part):
            part[:] = data
        else:
            raise ValueError(f"{name} is cut off")
    return array.reshape(shape, order="F" if by_columns else "C")


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes, the most that are read")
