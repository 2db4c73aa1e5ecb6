"""Reads and writes an index: the vectors of many images, and their names."""

from __future__ import annotations

import io
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fovea_client import Match
from fovea_engines.repository.files import write_file
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound
from fovea_preprocess.plural import counted
from fovea_server.search.identity import ModelIdentity
from fovea_server.search.reading import MAX_BYTES, read_arrays
from fovea_server.search.thumbnails import Thumbnails

DEFAULT = "index"
MAX_MATCHES = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SUFFIXES = (".npz", ".npy")
_NEEDED = {"vectors": ("f", 2), "names": ("U", 1)}
_FORMS = {**_NEEDED, "model": ("U", 1), "thumbnails": ("u", 1), "ends": ("i", 1)}
_BLOCK = 4096
# Everything that a damaged file ends in.
_DAMAGE = (
    *(OSError, ValueError, LookupError, EOFError, ArithmeticError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


@dataclass(frozen=True, slots=True, eq=False)
class VectorIndex:
    """The vectors of images.

    Attributes:
        vectors: float32 [n, d], each of length 1 or zeros.
        names: of the n images.
        model: that made the vectors; None where the file does not say, as one of another program.
        thumbnails: of the images; None where the index has none.
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
        """Normalise vectors [n, d]; ValueError if one has no length, or names are of others."""
        if len(names) != len(vectors):
            raise ValueError(f"{len(names)} names, and vectors of {list(vectors.shape)}")
        unit = np.empty(vectors.shape, np.float32)
        # In blocks: the doubles of all would take twice the memory of a large index.
        for start in range(0, len(vectors), _BLOCK):
            block = vectors[start : start + _BLOCK].astype(np.float64)
            with np.errstate(over="ignore"):
                norms = np.linalg.norm(block, axis=1, keepdims=True)
            if not np.isfinite(norms).all():
                raise ValueError("a vector has a number that is NaN, infinite, or far too large")
            norms[norms == 0] = 1
            unit[start : start + _BLOCK] = block / norms
        # A file name need not be text, and an answer must be.
        texts = [name.encode(errors="replace").decode() for name in names]
        return cls(unit, texts, model, thumbnails)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``vectors``, ``names``, and perhaps ``model``, ``thumbnails`` and ``ends`` of .npz.

        Or vectors from .npy, which are numbered.

        Raises:
            InvalidModel: it is no such file.
        """
        try:
            arrays = read_arrays(path, _FORMS)
            if path.suffix == ".npy":
                return cls.of(arrays["vectors"], [*map(str, range(len(arrays["vectors"])))])
            if missing := [name for name in _NEEDED if name not in arrays]:
                raise ValueError(f"it has no {missing[0]}")
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
        """Write .npz; those who read the former file meanwhile read on in it.

        InvalidOption if it would have more than is read.
        """
        content = io.BytesIO()
        arrays: dict[str, Any] = {"vectors": self.vectors, "names": np.array(self.names, np.str_)}
        if self.model is not None:
            arrays["model"] = np.array(self.model.parts)
        if self.thumbnails is not None:
            arrays |= {"thumbnails": self.thumbnails.files, "ends": self.thumbnails.ends}
        if (size := sum(array.nbytes for array in arrays.values())) > MAX_BYTES:
            raise InvalidOption(
                f"the index would have {size:,} bytes, and {MAX_BYTES:,} are the most that are "
                "read: index fewer images, or leave out --thumbnails"
            )
        np.savez(content, **arrays)
        # Two that write at once have a file each, and the later one stays.
        partial = path.with_name(f".{path.name}.{uuid4().hex}.part")
        try:
            write_file(partial, content.getvalue())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def nearest(
        self, vector: NDArray[np.float32], most: int, *, thumbnails: bool = False
    ) -> list[Match]:
        """Return the images that are most like a vector of length 1, [d], best first.

        It is exact: all are compared. ValueError if the vector has another length.
        """
        pictures = self.thumbnails if thumbnails else None
        if vector.shape != self.vectors.shape[1:]:
            raise ValueError(
                f"it has vectors of {self.vectors.shape[1]} numbers, and the model's have "
                f"{len(vector)}"
            )
        cosines = self.vectors @ vector
        most = min(most, len(cosines))
        # To sort all would take longer than to compare them.
        best = np.argpartition(-cosines, most - 1)[:most] if most else np.zeros(0, np.intp)
        best = best[np.lexsort((best, -cosines[best]))]
        # Rounding may lead out of -1 to 1.
        scores = np.clip(cosines[best], -1, 1)
        return [
            Match(
                self.names[at],
                round(float(score), 6),
                None if pictures is None else pictures[at],
            )
            for at, score in zip(best.tolist(), scores, strict=True)
        ]

    @property
    def text(self) -> str:
        """Describe it in a few words."""
        return f"{counted(len(self.names), 'image')}, vectors of {self.vectors.shape[1]}"


def check_name(name: str) -> str:
    """Return the name of an index; InvalidOption if it is none, and so also if it is a path."""
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"index is '{name[:60]}'; a name has letters, digits, - and _, and is no path"
        )
    return name


def find_index(folder: Path, name: str) -> Path:
    """Find the file of an index in the folder of a model; NotFound if it is not there.

    A link that leads out of the folder counts as not there.
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
    """Return the command that builds an index, with the newest version by default."""
    named = "" if name == DEFAULT else f" --name {name}"
    return f"fovea index {model} IMAGES{named}{'' if version is None else f' --version {version}'}"
