"""All models of a server: lookup, loading and unloading."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fovea_engines.repository.history import HISTORY_FILE
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import (
    FoveaError,
    InvalidModel,
    InvalidRequest,
    LoadFailed,
    ModelNotReady,
    NotFound,
    ShuttingDown,
    Unavailable,
)
from fovea_preprocess.text import counted
from fovea_server.models.config.files import check_engine_files, check_name, model_of_files
from fovea_server.models.described import describe_engine
from fovea_server.models.loader import Attempts, Loader
from fovea_server.models.model import ServedModel, State
from fovea_server.models.opening import open_engine
from fovea_server.models.remotes import Remotes
from fovea_server.models.slot import IndexEntry, trim
from fovea_server.models.source import Repositories, Source
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.settings import ModelControlMode, Settings

log = logging.getLogger(__name__)


def freeze_heap() -> None:
    """Collect garbage, exclude all living objects from later collections, and trim the heap.

    The objects that imports and loads have created live as long as the process, so later
    collections need not visit them.
    """
    gc.collect()
    gc.freeze()
    trim()


def make_settings(folder: Path, *, allow_code: bool | None = None) -> Settings:
    """Make settings for a command that loads models from the parent directory of `folder`.

    If `allow_code` is None, the environment variable FOVEA_ALLOW_CODE decides. Log records of load
    errors are no longer printed to stderr.
    """
    # The command gets load errors as exceptions, so the log need not print them to stderr a second
    # time.
    logging.getLogger(__package__).addHandler(logging.NullHandler())
    mode = ModelControlMode.EXPLICIT
    given: dict[str, Any] = {} if allow_code is None else {"allow_code": allow_code}
    return Settings(model_repository=(folder.parent,), model_control_mode=mode, **given)


class Registry:
    """All models of a server: looks them up, and loads and unloads them.

    The setting `model_control_mode` decides when models are loaded, as in Triton.

    Args:
        settings: settings of the server.
        sees: returns whether the client of the current request may see the model of this name.
        only: names of the models that the registry serves; None for all models.
        described: True to keep engines closed and to pull only the cards from remote stores,
            because other processes run the models.

    Raises:
        NotFound, Unavailable: a repository is not a directory, or its store cannot be read now.
        InvalidOption: the cache setting is invalid.

    Attributes:
        settings: the argument.
        sees: the argument.
        started: True after the server has tried to load every model once.
    """

    def __init__(
        self,
        settings: Settings,
        sees: Callable[[str], bool] = lambda name: True,
        *,
        only: Collection[str] | None = None,
        described: bool = False,
    ) -> None:
        self.settings, self.sees = settings, sees
        self._mode = settings.model_control_mode
        self._remotes = Remotes(settings, only, described=described)
        self.store_faults = self._remotes.faults
        self._repositories = Repositories(self._remotes.folders, settings.model_name, only)
        self._repositories.models()
        given = settings.cache_config
        self.cache = None if given is None else ResponseCache.parse(given)
        opening = describe_engine if described else open_engine
        self._loader = Loader(self._repositories, settings, self.find, self.cache, opening)
        self._slots = self._loader.slots
        self._scanned = self.started = False
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        """Begin to load the models in a thread, and return at once."""
        self._remotes.start()
        self._thread.start()

    def _run(self) -> None:
        self._remotes.wait()
        if self._loader.closing.is_set():
            return
        attempt = Attempts()
        attempt(self._load_first)
        self._scanned = self.started = True
        self._log_start()
        freeze_heap()
        if self._mode is ModelControlMode.POLL:
            while not self._loader.closing.wait(self.settings.repository_poll_secs):
                attempt(self._poll)

    def _load_first(self) -> None:
        names = self.settings.load_model
        if self._mode is not ModelControlMode.EXPLICIT or "*" in names:
            names = self._repositories.models()
        log.info("loading %s of %s", counted(len(names), "model"), self._repositories)
        started = self._loader.begin(names, required=True)
        self._refuse_unpulled()
        self._scanned = True
        if self.reason and not self._slots:
            log.warning("%s: %s", self._repositories, self.reason)
        self._loader.finish(started)

    def _log_start(self) -> None:
        ready = sum(bool(slot.ready) for slot in list(self._slots.values()))
        if failed := [name for name, slot in sorted(self._slots.items()) if slot.unserved()]:
            about = counted(ready, "model"), len(failed), ", ".join(failed)
            log.error("%s ready, %d failed: %s (see above)", *about)
        else:
            log.info("%s ready", counted(ready, "model"))

    def _poll(self) -> None:
        """Unload models that have left the repositories, and load new and changed models."""
        there = self._repositories.models()
        self._refuse_unpulled()
        for slot in list(self._slots.values()):
            if slot.wanted and slot.name not in there:
                log.info("model %s was removed from the repository", slot.name)
                self._loader.unload(slot.name)
        self._loader.finish(self._loader.begin(there, changed=True))

    def _refuse_unpulled(self) -> None:
        """Record why models could not be pulled from a store and have no earlier version here."""
        for name, reason in self._remotes.refused.items():
            self._loader.slot(name).refuse(reason, None)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterate over every version that is loaded, is being loaded, or is being unloaded."""
        for slot in list(self._slots.values()):
            for model in list(slot.versions.values()):
                if model.is_live:
                    yield model

    def get(self, name: str, version: int | None = None) -> ServedModel:
        """Look up a model.

        A version of None means the current version. If no version can respond, it means the newest
        version.

        Raises:
            NotFound: the model or version does not exist; the message lists the existing ones.
            ModelNotReady: the model exists but none of its versions could be read, or the server
                has not read the repositories yet.
        """
        scanned, slot = self._scanned, self._slots.get(name)
        if slot is None or not (slot.versions or slot.fault):
            self._check_scanned(name, scanned)
            ready = sorted(n for n, s in self._slots.items() if s.ready)
            known = list(filter(self.sees, ready))
            close = get_close_matches(name, known, 1)
            meant = f"did you mean '{close[0]}'? " if close else ""
            # A client must not learn how many models exist that it may not see.
            served = ", ".join(known) or ("" if ready else "none")
            listed = f"; {meant}served models: {served}" if served else ""
            raise NotFound(f"there is no model '{name}'{listed}")
        if not slot.versions:
            raise ModelNotReady(f"model '{name}': {slot.fault}")
        if version is None:
            return slot.current or slot.versions[max(slot.versions)]
        if version not in slot.versions:
            served = ", ".join(map(str, slot.ready)) or "none"
            if version in self.list_unloaded(name):
                raise NotFound(
                    f"version {version} of model '{name}' exists, but is not served; served "
                    f"versions: {served}. POST /v1/models/{name}/versions/{version}/load serves "
                    f"it beside them, and `fovea promote {name} {version}` makes it current"
                )
            raise NotFound(f"model '{name}' has no version {version}; served versions: {served}")
        return slot.versions[version]

    def find(self, name: str, version: int | None = None) -> ServedModel:
        """Look up a model that can respond now; errors have Triton's wording.

        Raises:
            NotFound: the model or version does not exist, or no version can respond.
            ModelNotReady: the version cannot respond now, or the server has not read the
                repositories yet.
        """
        scanned, slot = self._scanned, self._slots.get(name)
        if slot is None or not (slot.versions or slot.fault):
            self._check_scanned(name, scanned)
        if slot is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        about = f"Request for unknown model: '{name}' "
        if version is None:
            if (model := slot.current) is None:
                raise NotFound(f"{about}has no available versions")
            return model
        if (model := slot.versions.get(version)) is None:
            raise NotFound(f"{about}version {version} is not found")
        if model.state is not State.READY:
            raise ModelNotReady(f"{about}version {version} is not at ready state")
        return model

    def of_sequence(self, model: ServedModel, sequence: int | str) -> ServedModel:
        """Return the version in which a sequence began; a promotion does not move sequences.

        Return `model` if the sequence has not begun in any version.
        """
        if model.config.sequence_batching is None or model.name not in self._slots:
            return model
        slot = self._slots[model.name]
        ready = (slot.versions[version] for version in slot.ready)
        return next((one for one in ready if one.scheduler.holds(sequence)), model)

    def _check_scanned(self, name: str, scanned: bool) -> None:
        """Raise ModelNotReady if the repositories were not read yet.

        A proxy then tries another server.

        `scanned` is the state before the lookup, because the scan may find the model just after the
        lookup.
        """
        if not scanned:
            raise ModelNotReady(f"model '{name}': {self._not_scanned}")

    def promoted_version(self, name: str) -> int | None:
        """Return the promoted version of a model; None if no version was promoted."""
        slot = self._slots.get(name)
        return None if slot is None else slot.promoted

    def folder(self, name: str) -> Path:
        """Return the directory of a model, for writing its promotion history.

        Raises:
            NotFound: the model does not exist.
            Unavailable: the directory is a copy from a remote store, so a change would be lost.
        """
        if name[:1] == "." or not (folder := self._repositories.folder(name)).is_dir():
            raise NotFound(f"there is no model '{name}' in the repository")
        if self._remotes.has(folder):
            raise Unavailable(
                f"model '{name}' is in a remote store, which the server cannot change: promote it "
                f"in a local copy of the model, then copy {name}/{HISTORY_FILE} into the store"
            )
        return folder

    def follow(self, name: str, upcoming: int | None = None) -> bool:
        """Apply a model's promotion history; see `Loader.follow`. This call blocks."""
        return self._loader.follow(name, upcoming)

    def list_unloaded(self, name: str) -> list[int]:
        """List the versions of a model that are on disk but not loaded, ascending."""
        slot = self._slots.get(name)
        if slot is None or slot.tried is None:
            return []
        folder, loaded = slot.tried.folder, slot.versions
        try:
            there = ModelRepository(folder.parent).versions(folder.name)
        except OSError:
            return []
        return [version for version in there if version not in loaded]

    def load_version(self, name: str, version: int) -> None:
        """Load a version in addition to the served versions; see `Loader.load_version`. Blocks."""
        self._loader.load_version(name, version)

    def unload_version(self, name: str, version: int) -> None:
        """Unload a version that was loaded by number; see `Loader.unload_version`. Blocks."""
        self._loader.unload_version(name, version)

    def versions(self, name: str) -> tuple[int, ...]:
        """Return the versions of a model that can respond now, ascending."""
        return self._loader.ready(name)

    def index(self, ready: bool = False) -> list[IndexEntry]:
        """List the entries of all models, sorted by name.

        If `ready` is True, list only versions that can respond now.
        """
        names = set(self._slots) if ready else self._repositories.folders().union(self._slots)
        return [entry for name in sorted(names) for entry in self.entries(name, ready)]

    def entries(self, name: str, ready: bool = False) -> list[IndexEntry]:
        """List the entries of `index` for one model."""
        slot = self._slots.get(name)
        return [IndexEntry(name)] if slot is None else list(slot.entries(ready))

    def availability(self) -> dict[str, bool]:
        """Return for each model, by name, whether it can respond now.

        Models that have left the repository are omitted.
        """
        try:
            folders = self._repositories.folders()
        except (FoveaError, OSError):
            # If a repository cannot be read now, its loaded models are still served.
            folders = set(self._slots)
        return {
            name: bool(slot.ready)
            for name, slot in sorted(self._slots.items())
            if slot.ready or name in folders
        }

    @property
    def ready(self) -> bool:
        """True if the server is ready; otherwise `reason` explains why it is not."""
        return not self.reason

    @property
    def reason(self) -> str:
        """The reason why the server is not ready, in one sentence; empty if the server is ready."""
        if not self._scanned:
            return self._not_scanned
        if not self.settings.strict_readiness:
            return "" if self.started else "models are being loaded"
        if not self._slots and self._mode is ModelControlMode.NONE:
            return (
                "there is no model in the repository (NAME/VERSION/model.*): "
                f"{self._repositories.advice()}"
            )
        unserved = self._list_unserved()
        reasons = [text for name, text in unserved if self.sees(name)]
        if hidden := {name for name, _ in unserved if not self.sees(name)}:
            models = counted(len(hidden), "model")
            reasons.append(f"{models} not ready: see the server's log")
        return "; ".join(reasons)

    @property
    def _not_scanned(self) -> str:
        return self._remotes.reason or "the repository is being read"

    @property
    def unserved(self) -> list[str]:
        """Models that could not be loaded at the start or have failed since, with their reasons."""
        return [text for _, text in self._list_unserved()]

    def _list_unserved(self) -> list[tuple[str, str]]:
        """List the models of `unserved` as pairs (name, text).

        The name is "" for models of a store.
        """
        died = [(m.name, f"{m.name}: {m.reason}") for m in self if m.state is State.UNAVAILABLE]
        slots = [(n, text) for n, slot in sorted(self._slots.items()) for text in slot.unserved()]
        stores = [("", text) for text in self._remotes.unserved]
        return list(dict.fromkeys([*died, *slots, *stores]))

    def load(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model, or reload it if it has changed. This call blocks.

        Args:
            name: name of the model.
            config: JSON that replaces config.pbtxt until the next load.
            files: content of each file by its path; these files replace the model's directory.

        Raises:
            Unavailable: the control mode does not allow loading by request, or the server is
                stopping.
            LoadFailed: the model does not exist, or its configuration or files cannot be used.
            InvalidRequest: the model cannot be served; the previous versions stay in service.
        """
        self._check_mode(f"load model {name!r}")
        check_name(name)
        with ExitStack() as stack:
            try:
                source = self._source(stack, name, config, files or {})
            except (FoveaError, OSError) as error:
                about = f"failed to load '{name}', failed to poll from model repository"
                if isinstance(error, NotFound) or config is not None:
                    log.error("model %s cannot be loaded: %s", name, error)
                else:
                    self._loader.refuse(name, error)
                # Triton's text ends before the reason, and clients match that text. The reason is
                # for people.
                reason = "" if isinstance(error, NotFound) else f": {error}"
                raise LoadFailed(about + reason) from error
            try:
                self._loader.load(name, source)
            except InvalidModel as error:
                raise InvalidRequest(f"load failed for model '{name}': {error}\n") from error
            finally:
                self._slots[name].required = False

    def _source(
        self, stack: ExitStack, name: str, config: str | None, files: Mapping[str, bytes]
    ) -> Source:
        if files and config is None:
            raise InvalidModel("Load parameter 'config' must be specified for model file override")
        if not files:
            self._remotes.pull()
            return self._loader.read(name, config)
        folder = stack.enter_context(model_of_files(name, files))
        source = Source.read(folder, name, self.settings, config)
        check_engine_files(source.config)
        return source

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model; see `Loader.unload`. This call blocks.

        Raises:
            Unavailable: the control mode does not allow unloading by request, or the server is
                stopping.
        """
        self._check_mode(f"unload model {name!r}")
        self._loader.unload(name, dependents=dependents)

    def _check_mode(self, action: str) -> None:
        if self._mode is not ModelControlMode.EXPLICIT:
            # Clients match Triton's text, which is the same in every mode and does not explain the
            # cause, so the cause is logged.
            log.warning(
                "a request to %s was rejected: requests may load and unload models only with "
                "--model-control-mode=explicit (now %s)",
                action,
                self._mode.value,
            )
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled: start the "
                "server with --model-control-mode explicit"
            )
        if self._loader.closing.is_set():
            raise ShuttingDown("the server is stopping")

    def stop(self) -> None:
        """Load no more models, and cancel the loads in progress."""
        self._loader.stop()
        self._remotes.stop()

    def close(self) -> None:
        """Finish accepted requests, and unload all models.

        Loads that have not begun are dropped.
        """
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._loader.close()
