"""Loads and unloads models in the order of their dependencies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from fovea_preprocess.errors import (
    FoveaError,
    InvalidModel,
    InvalidRequest,
    NotFound,
    ShuttingDown,
)
from fovea_server.models.config.ensembles import check_ensemble
from fovea_server.models.model import FindModel, ServedModel
from fovea_server.models.opening import OpenEngine
from fovea_server.models.slot import ModelSlot
from fovea_server.models.source import Repositories, Source
from fovea_server.pipelines.recipe import PLATFORM
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.settings import Settings

log = logging.getLogger(__name__)

# Largest depth of ensembles that run other ensembles. Each level takes several stack frames.
_DEEPEST = 32

# Number of threads that read model directories. A directory on a slow file system blocks one
# thread; the other threads read the other directories meanwhile.
_READERS = 8


class StartedLoads:
    """Models that `Loader.begin` has read, and that a pool of threads loads.

    Attributes:
        tried: names of all models that were read.
        ensembles: ensembles and pipelines, which `Loader.finish` loads last.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.tried: set[str] = set()
        self.ensembles: list[tuple[ModelSlot, Source]] = []
        self._pool, self._loads = pool, list[Future[None]]()

    def add(self, slot: ModelSlot, source: Source) -> None:
        """Begin to load a model whose slot is prepared; callable from any thread."""
        self.tried.add(slot.name)
        if source.config.composing:
            self.ensembles.append((slot, source))
        else:
            self._loads.append(self._pool.submit(_finish, slot, source))

    def wait(self) -> None:
        """Wait until all models are loaded, and sort the ensembles by name."""
        with self._pool:
            for load in self._loads:
                load.result()
        self.ensembles.sort(key=lambda one: one[0].name)


def _finish(slot: ModelSlot, source: Source) -> None:
    with suppress(ShuttingDown):
        slot.finish(source, rebuild=False)


class Loader:
    """Loads and unloads models; thread-safe. Different models load in parallel.

    An ensemble is loaded after the models that it runs. It is reloaded when one of these models
    changes.

    Attributes:
        slots: the slot of each model, by the model's name. A slot holds all versions of one model.
        closing: set when the server begins to stop; then no more models are loaded.
    """

    def __init__(
        self,
        repositories: Repositories,
        settings: Settings,
        find: FindModel,
        cache: ResponseCache | None,
        open_engine: OpenEngine,
    ) -> None:
        self.slots: dict[str, ModelSlot] = {}
        self.closing = threading.Event()
        self._repositories = repositories
        self._settings = settings
        self._find = find
        self._cache = cache
        self._open_engine = open_engine

    def slot(self, name: str) -> ModelSlot:
        """Return the slot of a model; create the slot if it does not exist."""
        new = ModelSlot(name, self._make, self._settings.exit_timeout_secs, self.closing)
        return self.slots.setdefault(name, new)

    def _make(self, source: Source, version: int) -> ServedModel:
        folder = source.folder / str(version)
        arguments = version, folder, self._settings, source.config
        return ServedModel(*arguments, self._find, self._cache, self._open_engine)

    def read(self, name: str, config: str | None = None) -> Source:
        """Read the present state of a model's directory.

        Raises:
            NotFound, InvalidModel: see `Source.read`.
        """
        return Source.read(self._repositories.folder(name), name, self._settings, config)

    def load(
        self, name: str, source: Source, *, wanted: bool = True, above: tuple[str, ...] = ()
    ) -> None:
        """Load a model after the models that it runs, then reload the ensembles that run it.

        Args:
            name: name of the model.
            source: configuration and files of the model.
            wanted: True if the model was requested by name, False if an ensemble needs it.
            above: names of the ensembles that are being loaded and need this model.

        Raises:
            InvalidModel: the model cannot be loaded; the previous versions stay in service.
            ShuttingDown: the server is stopping.
        """
        slot = self.slot(name)
        try:
            if source.config.platform == PLATFORM:
                self._load_stages(name, source, above)
            else:
                self._load_composing(name, source, above)
            slot.wanted |= wanted
            fault = slot.load(source)
        except ShuttingDown:
            raise
        except FoveaError as error:
            self.refuse(name, error, source)
            raise InvalidModel(str(error)) from error
        if slot.ready:
            self._refresh(name, but=above)
        if fault:
            raise InvalidModel(fault)

    def follow(self, name: str, upcoming: int | None = None) -> bool:
        """Apply a model's promotion history; do nothing if the model is not loaded.

        The loaded configuration stays in use. The version `upcoming` is loaded in addition, until
        the next call of this function.

        Returns:
            True if the model is loaded.

        Raises:
            FoveaError: one of the errors of `load` and `read`.
        """
        slot = self.slots.get(name)
        if slot is None or slot.tried is None:
            return False
        if (source := self._read_with(slot, upcoming)) is None:
            return False
        before, slot.upcoming = slot.upcoming, upcoming
        if source != slot.tried or upcoming != before:
            self.load(name, source, wanted=False)
        return True

    def load_version(self, name: str, version: int) -> None:
        """Load a version in addition to the served versions, until the model is unloaded.

        Raises:
            NotFound: the version does not exist, or the model is not loaded.
            InvalidRequest: the files of the model came with a request, so the model has no other
                versions.
            InvalidModel: the version cannot be loaded; the present versions stay in service.
        """
        slot = self.slots.get(name)
        if slot is None or slot.tried is None:
            raise NotFound(f"model '{name}' is not loaded: load the model before a further version")
        if (source := self._read_with(slot, version)) is None:
            raise InvalidRequest(
                f"model '{name}' was loaded from the files of a request, so it has no other "
                "versions: send a new load request"
            )
        if version not in source.versions:
            known = ", ".join(map(str, source.versions))
            raise NotFound(f"model '{name}' has no version {version}; existing versions: {known}")
        before, slot.requested = slot.requested, slot.requested | {version}
        try:
            self.load(name, source, wanted=False)
        except FoveaError:
            slot.requested = before
            raise

    def unload_version(self, name: str, version: int) -> None:
        """Finish the accepted requests of a version that `load_version` has loaded, and unload it.

        Raises:
            NotFound: the version is not loaded.
            InvalidRequest: the version is also served for another reason, so it stays loaded.
            InvalidModel: the model's directory cannot be read; nothing has changed.
        """
        slot = self.slots.get(name)
        if slot is None or version not in slot.ready:
            raise NotFound(f"version {version} of model '{name}' is not loaded")
        if version in (before := slot.requested):
            slot.requested -= {version}
            try:
                if (source := self._read_with(slot, slot.upcoming, without=version)) is not None:
                    self.load(name, source, wanted=False)
            except FoveaError:
                slot.requested = before
                raise
        if version in slot.ready:
            raise InvalidRequest(
                f"version {version} of model '{name}' stays loaded: it is current, a canary, the "
                "previous version, or in the version_policy of config.pbtxt"
            )

    def _read_with(
        self, slot: ModelSlot, version: int | None, *, without: int | None = None
    ) -> Source | None:
        """Read a model's directory again, but keep the configuration and the versions in service.

        `version` is added to the versions in service, and `without` is removed from them. Versions
        that were built after the model was loaded are left out; the next start or poll loads them.

        Returns:
            The source, or None if the model's files came with a request.
        """
        source, now = self.read(slot.name), slot.source
        if now is None:
            return source
        if now.folder != source.folder:
            return None
        history = source.history
        if history.current is None and slot.current is not None:
            history = replace(history, current=slot.current.version)
        canary = () if history.canary is None else (history.canary["version"],)
        known = {*now.versions} - {without} | {history.current, version, *canary}
        versions = tuple(each for each in source.versions if each in known)
        return replace(source, config=now.config, versions=versions, history=history)

    def refuse(self, name: str, error: Exception, source: Source | None = None) -> None:
        """Log the reason why a model cannot be loaded, and store the reason in the model's slot."""
        log.error("model %s failed to load: %s", name, error)
        self.slot(name).refuse(str(error), source)

    def begin(
        self, names: Iterable[str], *, required: bool = False, changed: bool = False
    ) -> StartedLoads:
        """Read models of the repository in parallel; faults are logged and stored in their slots.

        A model begins to load as soon as it was read. `finish` waits until these models are loaded,
        and then loads the ensembles. If `changed` is True, models that are unchanged since the last
        attempt are skipped.
        """
        slots = [self.slot(name) for name in names]
        started = StartedLoads(ThreadPoolExecutor(self._settings.model_load_thread_count, "load"))

        def read(slot: ModelSlot) -> None:
            slot.wanted, slot.required = True, slot.required or required
            source = None
            try:
                source = self.read(slot.name)
                if changed and source == slot.tried:
                    return
                source = slot.begin(source)
            except FoveaError as error:
                if not (changed and slot.fault == str(error)):
                    self.refuse(slot.name, error, source)
            else:
                started.add(slot, source)

        with ThreadPoolExecutor(_READERS, "read") as readers:
            list(readers.map(read, slots))
        return started

    def finish(self, started: StartedLoads) -> None:
        """Wait until models are loaded, then load ensembles, then rebuild engines one by one."""
        started.wait()
        for slot, source in started.ensembles:
            self._try(slot, source)
        for name in started.tried:
            self._refresh(name, but=started.tried)
        # Rebuilds come last, because they may take minutes and must not delay other models.
        for slot in list(self.slots.values()):
            if slot.rebuild():
                self._refresh(slot.name)

    def _try(self, slot: ModelSlot, source: Source) -> None:
        # A fault is stored in the slot, so it needs no handling here.
        with suppress(InvalidModel, ShuttingDown):
            self.load(slot.name, source, wanted=False)

    def _load_composing(self, name: str, source: Source, above: tuple[str, ...]) -> None:
        """Load the models of an ensemble that are not ready.

        Check the tensors between its steps.
        """
        composing, missing = source.config.composing, []
        for other in composing:
            if other in (name, *above) or name in self._composing_of(other):
                raise InvalidModel(
                    f"circular dependency between ensembles: {other} -> ... -> {name} -> {other}"
                )
            if self.ready(other):
                continue
            try:
                found = self.read(other)
            except FoveaError:
                missing.append(other)
            else:
                self._load_for(name, other, found, above)
        if missing:
            raise InvalidModel(
                f"ensemble '{name}' contains models that are not available or ambiguous: "
                f"{', '.join(missing)}"
            )
        for other, versions in composing.items():
            for version in sorted(versions - {-1, *self.ready(other)}):
                raise InvalidModel(
                    f"ensemble '{name}' depends on '{other}' whose required version {version} is "
                    "not loaded."
                )
        if source.config.platform == "ensemble":
            check_ensemble(source.config, lambda n, v: self._find(n, v).config)

    def _load_stages(self, name: str, source: Source, above: tuple[str, ...]) -> None:
        """Load the models of a pipeline that are not ready."""
        for other in source.config.composing:
            about = f"a stage of '{name}' runs '{other}'"
            if other in (name, *above) or name in self._composing_of(other):
                fault = f"{about}, which runs '{name}': name another model in one of them"
                raise InvalidModel(fault)
            if self.ready(other):
                continue
            try:
                found = self.read(other)
            except FoveaError as error:
                near = get_close_matches(other, self._repositories.folders() - {name}, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise InvalidModel(f"{about}: {error}{hint}") from error
            try:
                self._load_below(name, other, found, above)
            except InvalidModel as error:
                raise InvalidModel(f"{about}, which cannot be loaded: {error}") from error

    def _load_for(self, name: str, other: str, found: Source, above: tuple[str, ...]) -> None:
        try:
            self._load_below(name, other, found, above)
        except InvalidModel as error:
            raise InvalidModel(
                f"ensemble '{name}' depends on '{other}' which has no loaded version. Model "
                f"'{other}' loading failed with error: {error}"
            ) from error

    def _load_below(self, name: str, other: str, found: Source, above: tuple[str, ...]) -> None:
        slot = self.slots.get(other)
        if len(above) >= _DEEPEST:
            raise InvalidModel(f"ensembles are nested more than {_DEEPEST} deep: join their steps")
        if slot is not None and slot.fault and slot.tried == found:
            raise InvalidModel(slot.fault)
        self.load(other, found, wanted=False, above=(*above, name))

    def _composing_of(self, name: str) -> set[str]:
        slot = self.slots.get(name)
        if slot is None or not slot.ready:
            return set()
        return set(slot.composing).union(*map(self._composing_of, slot.composing))

    def ready(self, name: str) -> tuple[int, ...]:
        """Return the versions of a model that can respond now, ascending."""
        slot = self.slots.get(name)
        return slot.ready if slot is not None else ()

    def _refresh(self, name: str, *, but: Collection[str] = ()) -> None:
        """Reload the ensembles that run a model which has changed.

        Ensembles that failed to load without the model are loaded again, except the ensembles in
        `but`.
        """
        for slot in list(self.slots.values()):
            if name not in slot.composing:
                continue
            if slot.outdated:
                self._bind(slot)
            elif slot.name not in but and (source := slot.pending) is not None:
                self._try(slot, source)

    def _bind(self, slot: ModelSlot) -> None:
        """Reload an ensemble with the present versions of its models.

        If these versions do not fit the ensemble, close it.
        """
        assert slot.source is not None, "it is served"
        try:
            self.load(slot.name, slot.source, wanted=False)
        except ShuttingDown:
            return
        except InvalidModel as error:
            slot.close(str(error))
            for above in self._ensembles_of(slot.name):
                self._bind(above)

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Finish the accepted requests of a model, and unload it; do nothing if it is not loaded.

        Ensembles that run the model are unloaded first. If `dependents` is True and the model is an
        ensemble, the models that it runs are also unloaded, unless they were requested by name or
        another ensemble runs them.
        """
        slot = self.slots.get(name)
        if slot is None:
            return
        slot.wanted = slot.required = False
        slot.requested = frozenset()
        self._empty(slot)
        slot.tried, slot.fault = None, ""
        if dependents and slot.source is not None:
            for other in slot.source.config.composing:
                below = self.slots.get(other)
                if below is not None and not below.wanted and not self._ensembles_of(other):
                    self.unload(other, dependents=True)

    def _empty(self, slot: ModelSlot, reason: str = "unloaded") -> None:
        for above in self._ensembles_of(slot.name):
            stages = above.source is not None and above.source.config.platform == PLATFORM
            because = f"model '{slot.name}', which one of its stages runs, was unloaded"
            self._empty(above, f"{because}: load it again" if stages else "unloaded")
        slot.close(reason=reason)

    def _ensembles_of(self, name: str) -> list[ModelSlot]:
        return [slot for slot in list(self.slots.values()) if slot.ready and name in slot.composing]

    def stop(self) -> None:
        """Stop loading models, and cancel a rebuild in progress."""
        self.closing.set()
        for slot in list(self.slots.values()):
            slot.cancel()

    def close(self) -> None:
        """Unload all models, ensembles before the models that they run."""
        slots = list(self.slots.values())
        ensembles = [slot for slot in slots if slot.composing]
        with ThreadPoolExecutor(8) as pool:
            for group in (ensembles, slots):
                list(pool.map(self._empty, group))


class Attempts:
    """Reads the repositories again and again.

    Logs a fault once when it begins and once when it ends.
    """

    def __init__(self) -> None:
        self._fault = ""

    def __call__(self, read: Callable[[], None]) -> None:
        """Call `read`; log its error if the error differs from the error of the previous call."""
        fault = ""
        try:
            read()
        except (FoveaError, OSError) as error:
            fault = str(error)
            if fault != self._fault:
                log.error("a repository cannot be read: %s; its models stay loaded", fault)
        except Exception as error:  # a failed poll must not end the polling
            fault = repr(error)
            if fault != self._fault:
                log.exception("the repositories could not be polled")
        if self._fault and not fault:
            log.warning("the repositories can be read again")
        self._fault = fault
