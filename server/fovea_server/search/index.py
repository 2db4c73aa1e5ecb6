"""Reads and writes an index: the embeddings of many images, and their names."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple, Self
from uuid import uuid4

import cv2
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.files import write_file
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound
from fovea_preprocess.text import counted

_SIDE = 128
_QUALITY = 80

# Largest size of an index in bytes: a million embeddings with 512 values each.
MAX_BYTES = 2 << 30

# Functions that read the header of a NumPy array, by the version of the format.
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK = 1 << 20

DEFAULT = "index"
MAX_MATCHES = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SUFFIXES = (".npz", ".npy")
_NEEDED = {"vectors": ("f", 2), "names": ("U", 1)}
_FORMS = {**_NEEDED, "model": ("U", 1), "thumbnails": ("u", 1), "ends": ("i", 1)}
_BLOCK = 4096
# All exceptions that reading a damaged file can raise.
_DAMAGE = (
    *(OSError, ValueError, LookupError, EOFError, ArithmeticError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


def thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image as a JPEG file of at most 128 x 128 pixels.

    `pixels` is uint8 RGB [height, width, 3].
    """
    height, width = pixels.shape[:2]
    scale = min(1.0, _SIDE / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(small, cv2.COLOR_RGB2BGR)
    return bytes(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1])


@dataclass(frozen=True, slots=True, eq=False)
class Thumbnails:
    """JPEG thumbnails in the order of the images.

    Attributes:
        files: concatenated JPEG files, uint8 [number of bytes].
        ends: offset of the end of each file, int64 [n].
    """

    files: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, files: Sequence[bytes]) -> Self:
        """Concatenate JPEG files."""
        ends = np.fromiter(accumulate(map(len, files)), np.int64, len(files))
        return cls(np.frombuffer(b"".join(files), np.uint8), ends)

    @classmethod
    def read(cls, files: NDArray[Any], ends: NDArray[Any], number: int) -> Self:
        """Check the arrays `thumbnails` and `ends` of an index file with `number` images.

        Raises:
            ValueError: the arrays do not fit the number of images.
        """
        made = cls(files, ends.astype(np.int64))
        lengths = np.diff(made.ends, prepend=0)
        last = made.ends[-1] if len(ends) else 0
        if files.dtype != np.uint8 or len(ends) != number or last != len(files):
            raise ValueError(f"its thumbnails do not fit {number} images")
        if (lengths < 0).any():
            raise ValueError("the offsets of its thumbnails decrease")
        return made

    def __getitem__(self, at: int) -> bytes:
        """Return the JPEG file of the image at a position."""
        start = 0 if at == 0 else self.ends[at - 1]
        return self.files[start : self.ends[at]].tobytes()


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The properties of a model that determine an image's embedding.

    Precision and backend are not included. They may change, because each build checks that its
    engine agrees with the source model.

    Attributes:
        network: SHA-256 of the source model.
        preprocessing: digest of the source model's preprocessing. It does not depend on which steps
            run inside the engine.
        outputs: positions of the outputs that the head reads. Names are not used, because backends
            may rename outputs.
    """

    network: str
    preprocessing: str
    outputs: str

    @classmethod
    def of(cls, card: EngineCard) -> Self:
        """Return the identity of the model whose card.json is `card`."""
        spec = card.source_preprocess or card.preprocess
        names = [output.name for output in card.outputs]
        # If the engine has no source model, such as a plan from another program, use the digest of
        # the engine file.
        return cls(
            card.onnx_sha256 or next(iter(card.files.values())),
            "" if spec is None else spec.digest,
            " ".join(str(names.index(name)) for name in card.head_outputs),
        )

    @classmethod
    def read(cls, parts: Sequence[str]) -> Self:
        """Return the identity from the texts that the property `parts` returned.

        Raises:
            ValueError: the number of texts is wrong.
        """
        try:
            return cls(*parts)
        except TypeError as error:
            raise ValueError(
                f"its description of the model has {len(parts)} parts instead of 3"
            ) from error

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the identity as a tuple of texts, which an index file stores."""
        return astuple(self)

    def difference(self, other: Self) -> str | None:
        """Return how another model differs, or None if both models compute the same embeddings."""
        if self.network != other.network:
            return "another source model"
        if self.preprocessing != other.preprocessing:
            return "different preprocessing"
        return None if self.outputs == other.outputs else "another output of the model"


def read_arrays(path: Path, forms: Mapping[str, tuple[str, int]]) -> dict[str, NDArray[Any]]:
    """Read the arrays named in `forms` from an .npz file, or `vectors` from an .npy file.

    Args:
        path: path of the file.
        forms: dict from the name of an array to NumPy's `dtype.kind` and the number of dimensions.

    Raises:
        ValueError: an array does not have its form, or the file exceeds `MAX_BYTES`.
        OSError, LookupError, EOFError, ArithmeticError, RuntimeError, MemoryError: the file is
            damaged.
        zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError: the file is damaged.
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
        raise ValueError(f"{name} has an unsupported compression")
    _check_size(info.file_size, most)
    with archive.open(info) as file:
        yield file, info.file_size
        file.read(1)  # zipfile checks the checksum only at the end


def _read(
    file: IO[bytes], name: str, forms: Mapping[str, tuple[str, int]], size: int
) -> NDArray[Any]:
    _check_size(size, MAX_BYTES)
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{name} has an unsupported version of NumPy's format")
    shape, by_columns, dtype = _HEADERS[version](file)
    kind, dimensions = forms[name]
    if dtype.kind != kind or not dtype.itemsize or len(shape) != dimensions or 0 in shape[1:]:
        wanted = {"f": "float", "U": "text", "u": "unsigned", "i": "signed"}[kind]
        raise ValueError(
            f"{name} is {dtype} {list(shape)}, but must be {wanted} with "
            f"{counted(dimensions, 'dimension')}"
        )
    declared, actual = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or declared != actual:
        raise ValueError(
            f"{name} with the shape {list(shape)} should have {declared:,} bytes, but has "
            f"{actual:,}"
        )
    array: NDArray[Any] = np.empty(math.prod(shape), dtype)
    view = array.view(np.uint8).data
    for start in range(0, len(view), _CHUNK):
        part = view[start : start + _CHUNK]
        if (data := file.read(len(part))) and len(data) == len(part):
            part[:] = data
        else:
            raise ValueError(f"{name} is truncated")
    return array.reshape(shape, order="F" if by_columns else "C")


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it exceeds the limit of {MAX_BYTES:,} bytes")


class Neighbour(NamedTuple):
    """An image of an index: name, cosine similarity to the query, and thumbnail if requested."""

    name: str
    score: float
    thumbnail: bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class VectorIndex:
    """The embeddings of images.

    Attributes:
        vectors: embeddings, float32 [n, d]. The norm of each embedding is 1, or 0 if all its values
            are 0.
        names: names of the n images.
        model: identity of the model that computed the embeddings; None if it is unknown, for
            example in a file from another program.
        thumbnails: thumbnails of the images; None if the index has none.
    """

    vectors: NDArray[np.float32]
    names: Sequence[str]
    model: ModelIdentity | None = None
    thumbnails: Thumbnails | None = None

    @classmethod
    def of(
        cls,
        vectors: NDArray[Any],
        names: Sequence[str],
        model: ModelIdentity | None = None,
        thumbnails: Thumbnails | None = None,
    ) -> Self:
        """Make an index from embeddings [n, d], which are normalized.

        Raises:
            ValueError: the numbers of embeddings and names differ, or an embedding is not finite.
        """
        if len(names) != len(vectors):
            raise ValueError(
                f"it has {len(names)} names, but vectors of shape {list(vectors.shape)}"
            )
        unit = np.empty(vectors.shape, np.float32)
        # Convert the embeddings in blocks, because a float64 copy of all would take twice their
        # memory.
        for start in range(0, len(vectors), _BLOCK):
            block = vectors[start : start + _BLOCK].astype(np.float64)
            with np.errstate(over="ignore"):
                norms = np.linalg.norm(block, axis=1, keepdims=True)
            if not np.isfinite(norms).all():
                raise ValueError("a vector has a number that is NaN, infinite, or far too large")
            norms[norms == 0] = 1
            unit[start : start + _BLOCK] = block / norms
        # File names may contain invalid UTF-8, but responses must be valid UTF-8.
        texts = [name.encode(errors="replace").decode() for name in names]
        return cls(unit, texts, model, thumbnails)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an index file.

        An .npz file has ``vectors`` and ``names``, and optionally ``model``, ``thumbnails`` and
        ``ends``. In an .npy file, the numbers of the embeddings are used as names.

        Raises:
            InvalidModel: the file is not an index.
        """
        try:
            arrays = read_arrays(path, _FORMS)
            if path.suffix == ".npy":
                return cls.of(arrays["vectors"], [*map(str, range(len(arrays["vectors"])))])
            if missing := [name for name in _NEEDED if name not in arrays]:
                raise ValueError(f"the array {missing[0]} is missing")
            names = arrays["names"].tolist()
            model = ModelIdentity.read(arrays["model"].tolist()) if "model" in arrays else None
            pictures = None
            if "thumbnails" in arrays:
                pictures = Thumbnails.read(arrays["thumbnails"], arrays["ends"], len(names))
            return cls.of(arrays["vectors"], names, model, pictures)
        except _DAMAGE as error:
            reason = str(error) or type(error).__name__
            raise InvalidModel(
                f"the index {path.name} cannot be read ({reason[:200]}): build it again with "
                "`fovea index`"
            ) from error

    def write(self, path: Path) -> None:
        """Write an .npz file atomically.

        Programs that read the previous file can continue to read it.

        Raises:
            InvalidOption: the file would exceed `MAX_BYTES`.
        """
        content = io.BytesIO()
        arrays: dict[str, Any] = {"vectors": self.vectors, "names": np.array(self.names, np.str_)}
        if self.model is not None:
            arrays["model"] = np.array(self.model.parts)
        if self.thumbnails is not None:
            arrays |= {"thumbnails": self.thumbnails.files, "ends": self.thumbnails.ends}
        if (size := sum(array.nbytes for array in arrays.values())) > MAX_BYTES:
            raise InvalidOption(
                f"the index would have {size:,} bytes, over the limit of {MAX_BYTES:,}: index "
                "fewer images, or leave out --thumbnails"
            )
        np.savez(content, **arrays)
        # Each writer has its own temporary file. If several write at the same time, the last file
        # stays.
        partial = path.with_name(f".{path.name}.{uuid4().hex}.part")
        try:
            write_file(partial, content.getvalue())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def nearest(
        self, vector: NDArray[np.float32], most: int, *, thumbnails: bool = False
    ) -> list[Neighbour]:
        """Return the most similar images, the best first. The search is exact.

        Args:
            vector: embedding to search for, float32 [d], with norm 1.
            most: largest number of images to return.
            thumbnails: True to return the thumbnails with the images.

        Raises:
            ValueError: the length of `vector` differs from the length of the embeddings.
        """
        pictures = self.thumbnails if thumbnails else None
        if vector.shape != self.vectors.shape[1:]:
            raise ValueError(
                f"its vectors have {self.vectors.shape[1]} values, but the model's embeddings "
                f"have {len(vector)}"
            )
        cosines = self.vectors @ vector
        most = min(most, len(cosines))
        # Select the best cosines first, because sorting all cosines would take longer than
        # computing them.
        best = np.argpartition(-cosines, most - 1)[:most] if most else np.zeros(0, np.intp)
        best = best[np.lexsort((best, -cosines[best]))]
        # Because of rounding errors, a cosine may be slightly outside -1 to 1.
        scores = np.clip(cosines[best], -1, 1)
        return [
            Neighbour(
                self.names[at],
                round(float(score), 6),
                None if pictures is None else pictures[at],
            )
            for at, score in zip(best.tolist(), scores, strict=True)
        ]

    @property
    def text(self) -> str:
        """Return a short description of the index."""
        return f"{counted(len(self.names), 'image')}, vectors of {self.vectors.shape[1]}"


def check_name(name: str) -> str:
    """Return `name` if it is a valid name of an index.

    Raises:
        InvalidOption: the name is invalid, for example a path.
    """
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"index is '{name[:60]}', but a name may contain only letters, digits, - and _"
        )
    return name


def find_index(folder: Path, name: str) -> Path:
    """Return the path of an index file in the directory of a model.

    A symbolic link to a file outside the directory is ignored.

    Raises:
        InvalidOption: the name is invalid.
        NotFound: the index does not exist.
    """
    for suffix in _SUFFIXES:
        path = folder / f"{check_name(name)}{suffix}"
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    raise NotFound(
        f"model '{folder.name}' has no index '{name}': build it with "
        f"`{command_for(folder.name, name)}`"
    )


def command_for(model: str, name: str, version: int | None = None) -> str:
    """Return the command that builds an index. Without a version, it uses the newest version."""
    named = "" if name == DEFAULT else f" --name {name}"
    return f"fovea index {model} IMAGES{named}{'' if version is None else f' --version {version}'}"
