"""A local directory with a copy of the models in a store."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.locking import lock, locked
from fovea_preprocess.errors import InvalidModel, NotFound, Unavailable
from fovea_server.stores.address import Address
from fovea_server.stores.fetch import UNFINISHED, Fetch
from fovea_server.stores.listing import RemoteFile, RemoteModel
from fovea_server.stores.store import Store

log = logging.getLogger(__name__)

_FRESH = ".fresh"


class Mirror:
    """A local copy of the models in a store. Models that have changed are replaced atomically.

    Several servers may share the directory of a mirror in the cache. It contains

        files/ID         the content of each file, pulled once
        models-at/ID/    the directory of a model, with hard links to these files
        models/NAME      a symbolic link to such a directory, which the server reads

    The IDs are computed from the store's listing, so the mirror needs no other state. After an
    interruption, a pull continues where it ended.

    Args:
        address: URL of the repository in the store.
        cache: directory of all mirrors.
        most_bytes: largest total size of the models in bytes.
        only: names of the models to pull; None for all. Other models in the directory are not
            removed as long as they are in the store.
        described: True to pull only the files that describe models, into a separate mirror. If a
            version has a card.json, its engine is not pulled.

    Attributes:
        root: path of the directory `models`.
        refused: reasons by the names of the store's models that were rejected.
    """

    def __init__(
        self,
        address: Address,
        cache: Path,
        most_bytes: int,
        only: Collection[str] | None = None,
        *,
        described: bool = False,
    ) -> None:
        self.address = address
        self.refused: dict[str, str] = {}
        self._store = Store(address)
        self._most_bytes = most_bytes
        self._only = only
        self._described = described
        self._folder = cache / f"{address.folder_name}{'-described' if described else ''}"
        self.root = self._folder / "models"
        self._files = self._folder / "files"
        self._snapshots = self._folder / "models-at"
        for folder in (self.root, self._files, self._snapshots):
            folder.mkdir(parents=True, exist_ok=True)
        self._judged: dict[str, str] = {}

    @property
    def has_models(self) -> bool:
        """Return whether the mirror has models from an earlier pull."""
        there = (path for path in self.root.glob("[!.]*") if _is_model(path))
        return any(self._only is None or path.name in self._only for path in there)

    @property
    def refused_new(self) -> dict[str, str]:
        """Return the rejected models that have no copy from an earlier pull, with reasons."""
        return {name: why for name, why in self.refused.items() if not _is_model(self.root / name)}

    def check(self) -> None:
        """List the store, to check that it responds. Raise the errors of `Store.models`."""
        self._store.models()

    def pull(self, stop: threading.Event, busy: Callable[[], None] = lambda: None) -> None:
        """Copy the models that have changed in the store.

        If a model is rejected, its previous copy stays, and `refused` has the reason. If another
        pull writes to the same directory, possibly from another server, this pull calls `busy` and
        waits.

        Raises:
            NotFound: the store has no model at this URL.
            Unavailable: the store does not respond, or its models exceed `most_bytes`.
            OSError: the directory cannot be written.
            ShuttingDown: the server is stopping.
        """
        try:
            os.close(lock(self._folder))
        except BlockingIOError:
            log.info("%s is being pulled by another server: waiting for it", self.address)
            busy()
        with locked(self._folder):
            stored = self._store.models()
            models = [m for m in stored if self._only is None or m.name in self._only]
            self._check_size(models)
            self._remove_unfinished()
            sound = [model for model in models if not self._problem(model)]
            changed = [model for model in sound if not self._is_current(model)]
            fetch = Fetch(self._store, self._files, stop)
            fetch.pull(file for model in changed for file in self._files_to_pull(model))
            for model in changed:
                self._take_over(model, fetch)
            self._report(models, fetch)
            self._remove_what_left({model.name for model in stored})
            # Keep the files of all models in the store, because other servers may need them in this
            # directory.
            self._remove_unused({file.content_id for model in stored for file in model.files})

    def _files_to_pull(self, model: RemoteModel) -> tuple[RemoteFile, ...]:
        return model.describing if self._described else model.files

    def _check_size(self, models: Iterable[RemoteModel]) -> None:
        size = sum(file.size for model in models for file in self._files_to_pull(model))
        if size > self._most_bytes:
            raise Unavailable(
                f"{self.address} has {size / 2**30:,.2f} GiB of models, over --repository-max-gb "
                f"({self._most_bytes / 2**30:,.2f}): raise it, or give a folder with fewer models"
            )

    def _problem(self, model: RemoteModel) -> str:
        return model.problem or self._judged.get(model.content_id, "")

    def _is_current(self, model: RemoteModel) -> bool:
        link = self.root / model.name
        return _is_model(link) and link.readlink().parent.name == model.content_id

    def _take_over(self, model: RemoteModel, fetch: Fetch) -> None:
        """Let the link of a model point to its new files.

        If they are invalid, store the reason in `_judged`.
        """
        if _first(model, fetch.unreadable):
            return
        try:
            if reason := _first(model, fetch.damaged):
                raise InvalidModel(reason)
            folder = self._snapshot(model)
        except InvalidModel as error:
            # The reason remains true until the files in the store change.
            self._judged[model.content_id] = str(error)
            return
        fresh = self.root / f".{model.name}{_FRESH}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(Path("..") / folder.relative_to(self._folder))
        fresh.replace(self.root / model.name)

    def _snapshot(self, model: RemoteModel) -> Path:
        """Create the directory of a model, with hard links to the model's files.

        Raises:
            InvalidModel: the files do not match the card.json of a version.
        """
        folder = self._snapshots / model.content_id / model.name
        shutil.rmtree(folder, ignore_errors=True)
        for file in self._files_to_pull(model):
            path = self._snapshots / model.content_id / file.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(self._files / file.content_id)
        # Set the time of each directory to the time of its newest file, so that the server does not
        # load unchanged models again.
        for below in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
            newest = max(path.stat().st_mtime_ns for path in below.rglob("*") if path.is_file())
            os.utime(below, ns=(newest, newest))
        for card in folder.glob(f"*/{CARD_FILE}"):
            if self._described:
                _check_names(card, model)
            else:
                _check_card(card, model.name)
        return folder

    def _report(self, models: Iterable[RemoteModel], fetch: Fetch) -> None:
        """Log the models that are rejected for the first time or for a new reason."""
        reasons = ((m.name, self._problem(m) or _first(m, fetch.unreadable)) for m in models)
        refused = {name: reason for name, reason in reasons if reason}
        for name, reason in refused.items():
            if self.refused.get(name) != reason:
                kept = " (its earlier copy is kept)" if _is_model(self.root / name) else ""
                log.error("model %s of %s was rejected%s: %s", name, self.address, kept, reason)
        self.refused = refused

    def _remove_what_left(self, names: set[str]) -> None:
        for path in self.root.iterdir():
            if path.is_symlink() and path.name not in names:
                path.unlink()

    def _remove_unfinished(self) -> None:
        for path in (*self._files.glob(f"*{UNFINISHED}"), *self.root.glob(f".*{_FRESH}")):
            path.unlink(missing_ok=True)

    def _remove_unused(self, wanted: set[str]) -> None:
        """Remove model directories without a link, and files that are in no model."""
        linked = {p.readlink().parent.name for p in self.root.iterdir() if p.is_symlink()}
        for folder in self._snapshots.iterdir():
            if folder.name not in linked:
                shutil.rmtree(folder, ignore_errors=True)
        for file in self._files.iterdir():
            if file.name not in wanted and file.stat().st_nlink == 1:
                file.unlink()


def _is_model(path: Path) -> bool:
    return path.is_symlink() and path.is_dir()


def _first(model: RemoteModel, reasons: Mapping[str, str]) -> str:
    """Return the reason of the first file of a model that has a reason.

    If no file has a reason, return "".
    """
    return next((reasons[f.content_id] for f in model.files if f.content_id in reasons), "")


def _read_card(path: Path, about: str) -> EngineCard:
    try:
        return EngineCard.read(path)
    except InvalidModel as error:
        raise InvalidModel(str(error).replace(str(path), f"{about}/{CARD_FILE}")) from error


def _missing_file_error(name: str, about: str) -> InvalidModel:
    return InvalidModel(
        f"{about}/{name} is not there, and {about}/{CARD_FILE} names it: has the upload not ended?"
    )


def _check_names(path: Path, model: RemoteModel) -> None:
    """Raise InvalidModel if the card.json names a file that is missing in the store."""
    about, stored = f"{model.name}/{path.parent.name}", {file.key for file in model.files}
    for name in _read_card(path, about).files:
        if f"{about}/{name}" not in stored:
            raise _missing_file_error(name, about)


def _check_card(path: Path, model: str) -> None:
    about = f"{model}/{path.parent.name}"
    for name, digest in _read_card(path, about).files.items():
        try:
            found = file_sha256(path.parent / name)
        except NotFound as error:
            raise _missing_file_error(name, about) from error
        if found != digest:
            raise InvalidModel(
                f"the sha256 of {about}/{name} differs from the sha256 in {about}/{CARD_FILE}: "
                "upload the version again, or build it again"
            )
