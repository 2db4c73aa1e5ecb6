"""Pulls files of a store to a local directory, several at a time, and checks the digests."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread

from fovea_engines.repository.files import writing
from fovea_preprocess.errors import FoveaError, InvalidModel, NotFound, ShuttingDown, Unavailable
from fovea_preprocess.text import counted, size_text
from fovea_server.stores.listing import RemoteFile
from fovea_server.stores.store import Store

log = logging.getLogger(__name__)

UNFINISHED = ".part"
_AT_ONCE = 4
_ATTEMPTS = 2
_SILENCE_S = 5.0
_PATIENCE_S = 0.2
# A file must receive at least `_MIN_BYTES` bytes in every `_WINDOW_S` seconds. Some stores deliver
# whole chunks of 4 MiB, so four files at once need 140 kB/s.
_WINDOW_S, _MIN_BYTES = 120.0, 1 << 20
_SLOWEST = f"{size_text(_MIN_BYTES)} in {_WINDOW_S:g} s"
# Number of models. If files of this number of models fail without a successful file between them,
# the store is treated as unavailable.
_MAX_FAILURES = 8
_numbers = itertools.count()


class Fetch:
    """Pulls the files that are missing in a directory, and logs the progress.

    Attributes:
        damaged: reasons by `content_id` for files whose content does not match the size or digest
            in the store's listing.
        unreadable: reasons by `content_id` for files that could not be read. The
            next pull tries again.
    """

    def __init__(self, store: Store, folder: Path, stop: threading.Event) -> None:
        self.damaged: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self._store = store
        self._folder = folder
        self._stop = stop
        self._lock = threading.Lock()
        self._waiting: deque[RemoteFile] = deque()
        self._error: FoveaError | OSError | None = None
        self._done = self._total = 0
        # Names of models with a file that could not be read, since the last file that was read
        # successfully.
        self._failed: set[str] = set()
        self._began = self._reported_at = time.monotonic()

    def pull(self, files: Iterable[RemoteFile]) -> None:
        """Pull each file to `folder / content_id`. A file appears there only after it is complete.

        Raises:
            Unavailable: files of too many models cannot be read. Files that are already complete
                stay.
            OSError: a file cannot be written.
            ShuttingDown: the server is stopping.
        """
        missing = [file for file in files if not (self._folder / file.content_id).exists()]
        self._total = sum(file.size for file in missing)
        if not missing:
            return
        text = "pulling %s, %s, of %s"
        log.info(text, counted(len(missing), "file"), _megabytes(self._total), self._store.address)
        self._waiting = deque(missing)
        workers = [_Worker(self._work) for _ in range(_AT_ONCE)]
        while any(worker.is_alive() for worker in workers) and not self._stop.wait(_PATIENCE_S):
            # If a thread waits too long for the store, abandon it and start a new one, because a
            # thread cannot be killed.
            workers = [worker if not worker.stalls else self._replace(worker) for worker in workers]
        if self._stop.is_set():
            raise ShuttingDown("the server is stopping")
        if self._error is not None:
            raise self._error
        seconds = time.monotonic() - self._began
        log.info("pulled %s of %s in %.1f s", _megabytes(self._done), self._store.address, seconds)

    def _replace(self, worker: _Worker) -> _Worker:
        if (file := worker.file) is None:  # the file was completed in the meantime
            return worker
        worker.left = True
        self._give_up(file, f"{file.key} comes too slowly: under {_SLOWEST}")
        return _Worker(self._work)

    def _work(self, worker: _Worker) -> None:
        while self._error is None and not self._stop.is_set() and not worker.left:
            try:
                file = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._pull(file, worker)
            except (FoveaError, OSError) as error:
                if not worker.left:
                    self._error = error

    def _pull(self, file: RemoteFile, worker: _Worker) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                worker.begin(file)
                self._attempt(file, worker)
            except InvalidModel as error:
                self.damaged[file.content_id] = str(error)
            except NotFound as error:
                self.unreadable[file.content_id] = str(error)
                return
            except Unavailable as error:
                if worker.left:
                    return
                if attempt == _ATTEMPTS:
                    self._give_up(file, str(error))
            else:
                self.damaged.pop(file.content_id, None)
                with self._lock:
                    self._failed.clear()
                return
            finally:
                worker.file = None

    def _give_up(self, file: RemoteFile, reason: str) -> None:
        """Leave a file to the next pull. If too many models have such files, stop this pull."""
        self.unreadable[file.content_id] = reason
        with self._lock:
            self._failed.add(_model_of(file))
            # Skip the other files of this model, and continue with the other models.
            self._waiting = deque(
                each for each in self._waiting if _model_of(each) not in self._failed
            )
            if len(self._failed) >= _MAX_FAILURES:
                self._error = Unavailable(reason)

    def _attempt(self, file: RemoteFile, worker: _Worker) -> None:
        target = self._folder / file.content_id
        # Each thread has its own unfinished file, because an abandoned thread may still write to
        # its file.
        unfinished = target.with_suffix(f".{next(_numbers)}{UNFINISHED}")
        try:
            self._copy(file, unfinished, worker)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    def _copy(self, file: RemoteFile, path: Path, worker: _Worker) -> None:
        """Copy a file, and check its size and digest.

        Raises:
            InvalidModel: the size or the digest differs from the store's listing.
        """
        digest = file.digest
        computed = hashlib.new(digest.algorithm if digest else "md5", usedforsecurity=False)
        computed.update(digest.prefix if digest else b"")
        size = 0
        with writing(path, file.size), path.open("wb") as opened:
            for chunk in self._store.read(file):
                size += len(chunk)
                if size > file.size:
                    break
                computed.update(chunk)
                opened.write(chunk)
                worker.bytes += len(chunk)
                self._count(len(chunk))
            opened.flush()
            os.fsync(opened.fileno())
        if size != file.size:
            raise InvalidModel(
                f"{file.key} ends after {size} bytes, but the store reports {file.size}"
                if size < file.size
                else f"{file.key} has more than the {file.size} bytes that the store reports"
            )
        if digest and computed.hexdigest() != digest.value and self._store.digest_counts(file):
            raise InvalidModel(
                f"{file.key} has the {digest.algorithm} {computed.hexdigest()}, but the store "
                f"reports {digest.value}: the file was damaged in the store or in transit"
            )

    def _count(self, size: int) -> None:
        if self._stop.is_set():
            raise ShuttingDown("the server is stopping")
        with self._lock:
            self._done += size
            now = time.monotonic()
            if now - self._reported_at < _SILENCE_S:
                return
            self._reported_at = now
        text = "pulling %s: %s of %s, %.0f s"
        of = _megabytes(self._done), _megabytes(self._total)
        log.info(text, self._store.address, *of, now - self._began)


class _Worker(Thread):
    """A thread that pulls files, with the state of its current file.

    Attributes:
        file: file that is being pulled; None between two files.
        bytes: number of bytes of the file that were received so far.
        left: True if the thread received too few bytes and was abandoned.
    """

    def __init__(self, work: Callable[[_Worker], None]) -> None:
        # The thread is a daemon, so that a store that does not respond does not delay the exit of
        # the server.
        super().__init__(target=work, args=(self,), name="pull", daemon=True)
        self.file: RemoteFile | None = None
        self.bytes = self._seen = 0
        self._since = 0.0
        self.left = False
        self.start()

    def begin(self, file: RemoteFile) -> None:
        """Reset the counters for a new file."""
        self.bytes, self._seen, self._since = 0, 0, time.monotonic()
        self.file = file

    @property
    def stalls(self) -> bool:
        """Return whether the file has received too few bytes in the last `_WINDOW_S` seconds.

        Only one thread may read this property, because a read can start a new window of time.
        """
        now = time.monotonic()
        if self.file is None or now - self._since < _WINDOW_S:
            return False
        got, self._seen, self._since = self.bytes - self._seen, self.bytes, now
        return got < _MIN_BYTES


def _model_of(file: RemoteFile) -> str:
    return file.key.partition("/")[0]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
