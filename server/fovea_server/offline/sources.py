"""Finds the images and videos that a command line names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path
from typing import TypeAlias

from fovea_engines.evaluation.samples import IMAGE_SUFFIXES
from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_preprocess.mistakes import similar_path

VIDEO_SUFFIXES = frozenset((".mp4", ".avi", ".mkv", ".mov", ".webm"))
SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES

_LIVE = re.compile(r"(?:rtsps?|rtmp|rtp|udp|srt)://|/dev/video[0-9]+$|[0-9]$", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
# The end of the stem of a frame.
_FRAME = re.compile(r"_\d{6,}$")


Stamp: TypeAlias = tuple[int, int]
"""Size of a file, and the time of its change in microseconds."""


def stamp_of(file: os.stat_result) -> Stamp:
    """Return the marks that a file is recognised by."""
    return file.st_size, file.st_mtime_ns // 1000


@dataclass(frozen=True, slots=True)
class Source:
    """An image or video file.

    Attributes:
        path: to open it, as it was typed.
        name: from the folder that holds all sources, with slashes.
        stem: the same for its files among the results: without the suffix, and no other's. Nor is
            that of a frame.
        every: of a video, each frame of so many is taken.
    """

    path: Path
    name: str
    stem: str
    every: int

    @property
    def file(self) -> str:
        """Return the path as text; bytes of a name that are no text are escaped."""
        return printable(str(self.path))

    @property
    def stamp(self) -> Stamp | None:
        """Return the marks that the file is recognised by; None where it is missing."""
        try:
            return stamp_of(self.path.stat())
        except OSError:
            return None

    @property
    def is_video(self) -> bool:
        """Return True if it has frames."""
        return _is_video(self.path)


@dataclass(frozen=True, slots=True)
class Sources:
    """All files in the order in which they are read, and how many others were passed over.

    `listed` is True if folders or globs were typed, and not only files.
    """

    files: tuple[Source, ...]
    skipped: int
    listed: bool


def find_sources(given: Sequence[str], *, every: int = 1, drawn: Path | None = None) -> Sources:
    """Find the images of arguments: files, folders with all images below them, and globs.

    A file that is not there is among the sources: it fails when it is read. `drawn` is a folder
    of annotated images, which are results and no sources.

    Raises:
        NotFound: a folder or a glob has no image, or none of the files is there.
        InvalidOption: an address, or a file in `drawn`.
    """
    own = None if drawn is None else _absolute(drawn)
    # By their absolute paths: a file that is named twice is read once.
    paths: dict[Path, Path] = {}
    skipped, listed = 0, False
    for text in given:
        if _LIVE.match(text):
            raise InvalidOption(
                f"{text} is a camera or a live stream, and sources are files: `fovea watch MODEL "
                f"{text}` runs a model on it"
            )
        if _ADDRESS.match(text):
            raise InvalidOption(f"{text} is an address, and sources are files: download it first")
        matches, kinds = _matches(text)
        files = {_absolute(path): path for path in matches}
        if kinds is not None:
            listed = True
            files = {full: path for full, path in files.items() if own not in full.parents}
            taken = {f: path for f, path in files.items() if path.suffix.lower() in kinds}
            skipped += len(files) - len(taken)
            if not taken:
                raise NotFound(f"{text} has no image ({', '.join(sorted(kinds))})")
            files = dict(sorted(taken.items(), key=lambda item: _natural(item[1])))
        elif any(own in full.parents for full in files):
            raise InvalidOption(f"{text} lies where annotated images go: name another --out")
        paths |= files
    if not listed and not any(path.exists() for path in paths.values()):
        raise NotFound(f"{given[0]}: there is no such file{similar_path(Path(given[0]))}")
    top = os.path.commonpath([_absolute(_top(text)) for text in given])
    return Sources(tuple(_name_sources(paths.values(), top, every)), skipped, listed)


def printable(name: str) -> str:
    """Escape the bytes of a file's name that are no text, and that JSON and CSV cannot have."""
    return name.encode(errors="backslashreplace").decode()


def _matches(text: str) -> tuple[Iterable[Path], frozenset[str] | None]:
    """Return the files that a text stands for, and the kinds to take; all of a single file."""
    if Path(text).is_dir():
        return _below(Path(text)), IMAGE_SUFFIXES
    if _is_glob(text):
        return filter(Path.is_file, _expand(Path(text))), SUFFIXES
    return [Path(text)], None


def _expand(pattern: Path) -> Iterator[Path]:
    """Expand a glob as a shell does: without hidden files, and ** follows no links to folders.

    Such a link may lead in a circle.
    """
    if "**" not in pattern.parts:
        yield from map(Path, glob(str(pattern)))  # noqa: PTH207
        return
    at = pattern.parts.index("**")
    rest = pattern.parts[at + 1 :] or ("*",)
    for top in filter(Path.is_dir, _expand(Path(*pattern.parts[:at]))):
        for folder, _ in _walk(top):
            yield from _expand(Path(escape(str(folder)), *rest))


def _absolute(path: Path) -> Path:
    """Return an absolute path that follows no links: each link is an image of its own."""
    return Path(os.path.normpath(path.absolute()))


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _is_glob(text: str) -> bool:
    return _MAGIC.search(text) is not None and not Path(text).exists()


def _top(text: str) -> Path:
    """Return the folder that a source is named from."""
    path = Path(text)
    if path.is_dir():
        return path
    if not _is_glob(text):
        return path.parent
    fixed = Path()
    for part in path.parts[:-1]:
        if _MAGIC.search(part):
            break
        fixed /= part
    return fixed


def _below(folder: Path) -> Iterator[Path]:
    """Yield all files but the hidden ones, which systems leave beside images."""
    for here, names in _walk(folder):
        paths = (here / name for name in names if not name.startswith("."))
        # A pipe would be waited for. A broken link fails as a file that is not there.
        yield from (path for path in paths if path.is_file() or path.is_symlink())


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and those below it that are not hidden, each with the names of its files."""

    def fail(error: OSError) -> None:
        raise error

    for here, folders, files in os.walk(folder, onerror=fail):
        folders[:] = (name for name in folders if not name.startswith("."))
        yield Path(here), files


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """Sort numbers in names by their value: 2.jpg comes before 10.jpg."""
    return [
        [(int(run), "") if run.isdecimal() else (-1, run) for run in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


def _name_sources(paths: Iterable[Path], top: str, every: int) -> Iterator[Source]:
    names = {path: Path(os.path.relpath(path, top)) for path in paths}
    stems = {path: name.with_suffix("").as_posix() for path, name in names.items()}
    # An image may be called as a frame of a video is.
    framed = {
        _FRAME.sub("", stem)
        for path, stem in stems.items()
        if _FRAME.search(stem) and not _is_video(path)
    }
    taken: set[str] = set()
    for path, name in names.items():
        stem, number = stems[path], 1
        while stem in taken or (_is_video(path) and stem in framed):
            number += 1
            stem = f"{stems[path]}-{number}"
        taken.add(stem)
        yield Source(path, name.as_posix(), stem, every)
