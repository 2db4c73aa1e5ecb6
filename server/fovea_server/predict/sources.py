"""Finds the images and videos that a command line names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import glob
from pathlib import Path

from fovea_engines.evaluate.samples import IMAGE_SUFFIXES
from fovea_preprocess.errors import InvalidOption, NotFound

VIDEO_SUFFIXES = frozenset((".mp4", ".avi", ".mkv", ".mov", ".webm"))

_ADDRESS = re.compile(r"https?://")
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Source:
    """An image or video file.

    Attributes:
        path: to open it, as it was typed.
        name: from the folder that holds all sources, with slashes.
        stem: the same for its files among the results: without the suffix, and no other's.
        every: of a video, each frame of so many is taken.
    """

    path: Path
    name: str
    stem: str
    every: int

    @property
    def file(self) -> str:
        """Return the path as text; bytes of a name that are no text are escaped."""
        return str(self.path).encode(errors="backslashreplace").decode()

    @property
    def is_video(self) -> bool:
        """Return True if it has frames."""
        return self.path.suffix.lower() in VIDEO_SUFFIXES


@dataclass(frozen=True, slots=True)
class Sources:
    """All files in the order in which they are read, and how many others were passed over.

    `listed` is True if folders or globs were typed, and not only files.
    """

    files: tuple[Source, ...]
    skipped: int
    listed: bool


def find_sources(given: Sequence[str], *, every: int = 1, drawn: Path | None = None) -> Sources:
    """Find what was typed: files, folders with all images below them, and globs.

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
        raise NotFound(f"{given[0]}: there is no such file{_meant(Path(given[0]))}")
    top = os.path.commonpath([_absolute(_top(text)) for text in given])
    return Sources(tuple(_named(paths.values(), top, every)), skipped, listed)


def _meant(path: Path) -> str:
    """Name the file that a path which is not there may mean."""
    there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, there, 1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _matches(text: str) -> tuple[Iterable[Path], frozenset[str] | None]:
    """Return the files that a text stands for, and the kinds to take; all of a single file."""
    if Path(text).is_dir():
        return _below(Path(text)), IMAGE_SUFFIXES
    if _is_glob(text):
        # As a shell has it, without hidden files.
        paths = map(Path, glob(text, recursive=True))  # noqa: PTH207
        return filter(Path.is_file, paths), IMAGE_SUFFIXES | VIDEO_SUFFIXES
    return [Path(text)], None


def _absolute(path: Path) -> Path:
    """Return an absolute path that follows no links: each link is an image of its own."""
    return Path(os.path.normpath(path.absolute()))


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

    def fail(error: OSError) -> None:
        raise error

    for here, folders, files in os.walk(folder, onerror=fail):
        folders[:] = (name for name in folders if not name.startswith("."))
        paths = (Path(here, name) for name in files if not name.startswith("."))
        # A pipe would be waited for. A broken link fails as a file that is not there.
        yield from (path for path in paths if path.is_file() or path.is_symlink())


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """Sort numbers in names by their value: 2.jpg comes before 10.jpg."""
    return [
        [(int(run), "") if run.isdecimal() else (-1, run) for run in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


def _named(paths: Iterable[Path], top: str, every: int) -> Iterator[Source]:
    taken: set[str] = set()
    for path in paths:
        name = Path(os.path.relpath(path, top))
        stem, number = name.with_suffix("").as_posix(), 1
        while stem in taken:
            number += 1
            stem = f"{name.with_suffix('').as_posix()}-{number}"
        taken.add(stem)
        yield Source(path, name.as_posix(), stem, every)
