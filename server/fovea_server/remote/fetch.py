"""Pulls files of a store to a local folder, checked, several at once."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from threading import Thread

from fovea_engines.plural import counted
from fovea_engines.repository.writing import writing
from fovea_preprocess.errors import FoveaError, InvalidModel, NotFound, ShuttingDown
from fovea_server.remote.listing import RemoteFile
from fovea_server.remote.store import Store

log = logging.getLogger(__name__)

UNFINISHED = ".part"
_AT_ONCE = 4
_ATTEMPTS = 2
_SILENCE_S = 5.0
_PATIENCE_S = 0.2


class Fetch:
    """One pull of the files that a folder lacks; it logs how far it is.

    Attributes:
        damaged: reason by `content_id`, of files that were not what the store says.
        unreadable: the same of files that have left meanwhile, or may not be read.
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
        self._began = self._said = time.monotonic()

    def pull(self, files: Iterable[RemoteFile]) -> None:
        """Pull files to `folder / content_id`, where each appears whole.

        Raises:
            Unavailable: the store does not answer; files that were pulled before stay.
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
        # Daemons: the server's end does not wait for a store that does not answer.
        threads = [Thread(target=self._work, name="pull", daemon=True) for _ in range(_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self._stop.is_set():
                thread.join(_PATIENCE_S)
        if self._stop.is_set():
            raise ShuttingDown("the server is stopping")
        if self._error is not None:
            raise self._error
        seconds = time.monotonic() - self._began
        log.info("pulled %s of %s in %.1f s", _megabytes(self._done), self._store.address, seconds)

    def _work(self) -> None:
        while self._error is None and not self._stop.is_set():
            try:
                file = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._pull(file)
            except (FoveaError, OSError) as error:
                self._error = error

    def _pull(self, file: RemoteFile) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self._attempt(file)
            except InvalidModel as error:
                self.damaged[file.content_id] = str(error)
            except NotFound as error:
                self.unreadable[file.content_id] = str(error)
                return
            else:
                self.damaged.pop(file.content_id, None)
                return

    def _attempt(self, file: RemoteFile) -> None:
        target = self._folder / file.content_id
        unfinished = target.with_suffix(UNFINISHED)
        try:
            self._copy(file, unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    def _copy(self, file: RemoteFile, path: Path) -> None:
        """Copy a file; InvalidModel: it is not what the store says."""
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
                self._count(len(chunk))
            opened.flush()
            os.fsync(opened.fileno())
        if size != file.size:
            raise InvalidModel(
                f"{file.key} ends after {size} bytes, and the store says {file.size}"
                if size < file.size
                else f"{file.key} has more than the {file.size} bytes that the store says"
            )
        if digest and computed.hexdigest() != digest.value and self._store.digest_counts(file):
            raise InvalidModel(
                f"{file.key} has the {digest.algorithm} {computed.hexdigest()}, and the store says "
                f"{digest.value}: it was damaged there or on its way"
            )

    def _count(self, size: int) -> None:
        if self._stop.is_set():
            raise ShuttingDown("the server is stopping")
        with self._lock:
            self._done += size
            now = time.monotonic()
            if now - self._said < _SILENCE_S:
                return
            self._said = now
        text = "pulling %s: %s of %s, %.0f s"
        of = _megabytes(self._done), _megabytes(self._total)
        log.info(text, self._store.address, *of, now - self._began)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
