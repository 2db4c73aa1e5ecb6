"""Stores results as soon as they exist, so that an interrupted run can be resumed.

`predictions.jsonl` has a line for each image, in order. It is the journal, and also a result file.
`run.json` has the model and the options of the run, and whether the run is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from fovea_client import ImageError
from fovea_engines.repository.locking import lock
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption, InvalidRequest, InvalidResult
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.sources import Source

LINES = "predictions.jsonl"
_RUN = "run.json"
# Fields of a line that are not part of the result, but identify the image.
_OF_RUN = ("file", "frame", "stamp")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The model and the options of a run; a resumed run must have the same model and options."""

    model: str
    version: str
    task: str
    options: dict[str, Any]
    every: int
    formats: tuple[str, ...]
    codec: str | None


class Journal(Closing):
    """The journal of a run in its output directory, which is created if needed.

    If `resume` is True, the journal continues an earlier run in the directory, if there is one.
    Only one run at a time may write into a directory.

    Raises:
        InvalidOption: the directory has results already, the earlier run had another model or other
            options, or another run is writing there.
        InvalidRequest: run.json is damaged.
    """

    def __init__(
        self, folder: Path, settings: RunSettings, vocabulary: Vocabulary, *, resume: bool
    ) -> None:
        self._path, self._run = folder / LINES, folder / _RUN
        self._vocabulary = vocabulary
        self._settings: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = lock(folder)
        except BlockingIOError as error:
            raise InvalidOption(
                f"another run is writing to {folder}: wait until it ends, or give another --out"
            ) from error
        try:
            self._begin(folder, resume=resume)
        except BaseException:
            os.close(self._lock)
            raise

    def _begin(self, folder: Path, *, resume: bool) -> None:
        before = self._before()
        if before is not None and resume:
            self._check(before)
            _drop_torn_line(self._path)
        elif before is not None or self._path.exists():
            # A new run is rejected if the directory has results. Otherwise, old output files for
            # images that the new run does not have would remain among the new files.
            ended = before is None or before.get("complete")
            what = "results" if ended else "an interrupted run (--resume continues it)"
            raise InvalidOption(f"{folder} has {what}: give another --out, or remove these files")
        self._write_run(complete=False)
        self._file = self._path.open("ab")

    def _before(self) -> dict[str, Any] | None:
        if not (self._run.exists() and self._path.exists()):
            return None
        try:
            before = json.loads(self._run.read_bytes())
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise InvalidRequest(f"{self._run} is damaged: remove it to start again")
        return before

    def _check(self, before: dict[str, Any]) -> None:
        for name, value in self._settings.items():
            was, now = _without_version(before.get(name)), _without_version(value)
            if was != now:
                raise InvalidOption(
                    f"--resume cannot continue in {self._run.parent}: {name} was {_text(was)} and "
                    f"is now {_text(now)}. Use the former value, or start again with another --out"
                )

    def _write_run(self, *, complete: bool) -> None:
        new = self._run.with_suffix(".new")
        new.write_text(json.dumps(self._settings | {"complete": complete}, indent=2) + "\n")
        new.replace(self._run)

    def add(self, entry: Entry) -> None:
        """Append the entry of the next image."""
        self._file.write(_line(entry))
        self._file.flush()

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace the entries of some sources; `entries` must come in the order of the sources."""
        groups = groupby(entries, lambda entry: entry.source.file)
        nothing: tuple[str, Iterator[Entry]] = "", iter(())
        (file, group), replaced = next(groups, nothing), ""
        new = self._path.with_suffix(".new")
        with self._path.open("rb") as lines, new.open("wb") as written:
            for line in lines:
                name = orjson.loads(line)["file"]
                if name == file:
                    written.writelines(map(_line, group))
                    (file, group), replaced = next(groups, nothing), name
                elif name != replaced:
                    written.write(line)
        self._file.close()
        new.replace(self._path)
        self._file = self._path.open("ab")

    def read(self, sources: Sequence[Source]) -> Iterator[Entry]:
        """Yield all entries so far, in the order of `sources`.

        Raises:
            InvalidOption: the entries belong to other sources than `sources`.
            InvalidRequest: a line is damaged.
        """
        following = iter(sources)
        source: Source | None = None
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    value = orjson.loads(line)
                    file, result = value["file"], self._result(value)
                    stamp = None if (given := value.get("stamp")) is None else (given[0], given[1])
                except (InvalidResult, LookupError, TypeError, ValueError) as error:
                    raise InvalidRequest(
                        f"line {number} of {self._path} is damaged: start again with another --out"
                    ) from error
                if source is None or file != source.file:
                    source = next(following, None)
                if source is None or file != source.file:
                    raise InvalidOption(
                        f"--resume cannot go on: image {number} was {file}, and now "
                        f"{'there is none' if source is None else f'it is {source.file}'}; give "
                        "the same images, or start again in another --out"
                    )
                yield Entry(source, value.get("frame"), result, stamp)

    def _result(self, line: dict[str, Any]) -> Result | ImageError:
        """Return the result or the error in a line of the journal.

        If the line has neither, raise one of the errors that `read` handles.
        """
        if error := line.get("error"):
            return ImageError(str(error["code"]), str(error["message"]))
        json = {name: value for name, value in line.items() if name not in _OF_RUN}
        result = Result(json, self._vocabulary)
        # Only the size is checked here. The rest is checked when it is used, because decoding class
        # maps takes time.
        _ = result.size
        return result

    def complete(self) -> None:
        """Record in run.json that the run is complete."""
        self._write_run(complete=True)

    def close(self) -> None:
        """Close the file and release the lock; further calls do nothing."""
        if not self._file.closed:
            self._file.close()
            os.close(self._lock)


def _line(entry: Entry) -> bytes:
    line = entry.as_json() | {"stamp": entry.stamp}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which remains if a run was killed."""
    whole = 0
    with path.open("r+b") as lines:
        for line in lines:
            whole += len(line) if line.endswith(b"\n") else 0
        lines.truncate(whole)


def _without_version(value: Any) -> Any:
    """Return options without the version, which `run.json` also has in a field of its own."""
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if name != "version"}


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
