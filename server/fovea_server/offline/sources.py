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
# The end of the output name of a video frame: "_" and the frame number.
_FRAME = re.compile(r"_\d{6,}$")


Stamp: TypeAlias = tuple[int, int]
"""Size of a file in bytes, and its modification time in microseconds."""


def stamp_of(file: os.stat_result) -> Stamp:
    """Return the stamp of a file; a replaced file has another stamp."""
    return file.st_size, file.st_mtime_ns // 1000


@dataclass(frozen=True, slots=True)
class Source:
    """An image or video file.

    Attributes:
        path: path of the file, as it was typed.
        name: path relative to the common directory of all sources, with slashes.
        stem: name for output files, without a suffix. It is unique among all sources and frames.
        every: for a video, predict only every n-th frame.
    """

    path: Path
    name: str
    stem: str
    every: int

    @property
    def file(self) -> str:
        """The path as text; bytes that cannot be decoded are escaped."""
        return printable(str(self.path))

    @property
    def stamp(self) -> Stamp | None:
        """The stamp of the file; None if it is missing."""
        try:
            return stamp_of(self.path.stat())
        except OSError:
            return None

    @property
    def is_video(self) -> bool:
        """True if the file is a video, by its suffix."""
        return _is_video(self.path)


@dataclass(frozen=True, slots=True)
class Sources:
    """All image and video files of a command line, in the order in which they are read.

    Attributes:
        files: the images and videos.
        skipped: number of other files in the directories and globs.
        listed: True if a directory or a glob was typed, and not only files.
    """

    files: tuple[Source, ...]
    skipped: int
    listed: bool


def find_sources(given: Sequence[str], *, every: int = 1, drawn: Path | None = None) -> Sources:
    """Find the images and videos that the arguments of a command name.

    An argument is a file, a directory, or a glob. A directory stands for all images below it, but
    not for videos. A missing file is one of the sources; it fails when it is read.

    Args:
        given: the arguments.
        every: predict only every n-th frame of a video.
        drawn: directory of annotated images, whose files are never sources.

    Raises:
        NotFound: a directory or a glob has no image, or no file exists.
        InvalidOption: an argument is a URL or a live stream, or a typed file is in `drawn`.
    """
    own = None if drawn is None else _absolute(drawn)
    # Absolute path -> typed path. Absolute paths are the keys, so that a file that is named twice
    # is read once.
    paths: dict[Path, Path] = {}
    skipped, listed = 0, False
    for text in given:
        if _LIVE.match(text):
            raise InvalidOption(
                f"{text} is a camera or a live stream, but sources must be files: run `fovea "
                f"watch MODEL {text}` instead"
            )
        if _ADDRESS.match(text):
            raise InvalidOption(f"{text} is a URL, but sources must be files: download it first")
        matches, kinds = _matches(text)
        files = {_absolute(path): path for path in matches}
        if kinds is not None:
            listed = True
            files = {full: path for full, path in files.items() if own not in full.parents}
            taken = {f: path for f, path in files.items() if path.suffix.lower() in kinds}
            skipped += len(files) - len(taken)
            if not taken:
                raise NotFound(f"{text} has no images ({', '.join(sorted(kinds))})")
            files = dict(sorted(taken.items(), key=lambda item: _natural(item[1])))
        elif any(own in full.parents for full in files):
            raise InvalidOption(
                f"{text} is in the output folder for annotated images: give another --out"
            )
        paths |= files
    if not listed and not any(path.exists() for path in paths.values()):
        raise NotFound(f"{given[0]} does not exist{similar_path(Path(given[0]))}")
    top = os.path.commonpath([_absolute(_top(text)) for text in given])
    return Sources(tuple(_name_sources(paths.values(), top, every)), skipped, listed)


def printable(name: str) -> str:
    """Escape undecodable bytes of a file name, because JSON and CSV cannot contain them."""
    return name.encode(errors="backslashreplace").decode()


def _matches(text: str) -> tuple[Iterable[Path], frozenset[str] | None]:
    """Return the files that an argument names, and the suffixes of the files to accept.

    The suffixes are None if every file is accepted.
    """
    if Path(text).is_dir():
        return _below(Path(text)), IMAGE_SUFFIXES
    if _is_glob(text):
        return filter(Path.is_file, _expand(Path(text))), SUFFIXES
    return [Path(text)], None


def _expand(pattern: Path) -> Iterator[Path]:
    """Expand a glob as a shell does: without hidden files.

    `**` does not follow links to directories, because such a link may lead in a circle.
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
    """Return an absolute path without resolving links, because each link counts as an image."""
    return Path(os.path.normpath(path.absolute()))


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _is_glob(text: str) -> bool:
    return _MAGIC.search(text) is not None and not Path(text).exists()


def _top(text: str) -> Path:
    """Return the directory to which the names of the files in an argument are relative."""
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
    """Yield all files below a directory, except hidden files, which operating systems create."""
    for here, names in _walk(folder):
        paths = (here / name for name in names if not name.startswith("."))
        # Pipes are left out, because reading one would block. A broken link is kept; it fails as a
        # missing file when it is read.
        yield from (path for path in paths if path.is_file() or path.is_symlink())


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a directory and its subdirectories that are not hidden, each with its file names."""

    def fail(error: OSError) -> None:
        raise error

    for here, folders, files in os.walk(folder, onerror=fail):
        folders[:] = (name for name in folders if not name.startswith("."))
        yield Path(here), files


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """Return a sort key that compares numbers in names by value: 2.jpg comes before 10.jpg."""
    return [
        [(int(run), "") if run.isdecimal() else (-1, run) for run in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


def _name_sources(paths: Iterable[Path], top: str, every: int) -> Iterator[Source]:
    names = {path: Path(os.path.relpath(path, top)) for path in paths}
    stems = {path: name.with_suffix("").as_posix() for path, name in names.items()}
    # An image may have the same name as the output file of a video's frame. Then the video gets
    # another stem.
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
