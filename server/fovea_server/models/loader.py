"""Loads and unloads models, in the order of their dependencies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fovea_preprocess.errors import FoveaError, InvalidModel, NotFound, ShuttingDown
from fovea_server.models.config.ensembles import check_ensemble
from fovea_server.models.model import Find, ServedModel
from fovea_server.models.repositories import Repositories
from fovea_server.models.slot import ModelSlot, Replacement
from fovea_server.models.source import Source
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model that is to be loaded with others."""

    slot: ModelSlot
    source: Source
    replacement: Replacement | None


class Loader:
    """Fills the slots of a registry, and empties them.

    Any number of threads may load and unload; each model waits for itself only.

    Attributes:
        slots: models that were ever loaded, by name.
        closing: set once no model is loaded any more.
    """

    def __init__(
        self,
        repositories: Repositories,
        settings: Settings,
        find: Find,
        cache: ResponseCache | None,
    ) -> None:
        self.slots: dict[str, ModelSlot] = {}
        self.closing = threading.Event()
        self._repositories = repositories
        self._settings = settings
        self._timeout_s = settings.exit_timeout_secs
        self._find = find
        self._cache = cache

    def read(self, name: str) -> Source:
        """Read a model's folder as it is now.

        Raises:
            NotFound, InvalidModel: there is no such model, or it cannot be used.
        """
        return Source.read(self._repositories.folder(name), name, self._settings)

    def load(
        self, name: str, source: Source, *, wanted: bool = True, above: tuple[str, ...] = ()
    ) -> None:
        """Load a model after those that it runs, and then the ensembles that run it.

        Args:
            name: of the model.
            source: what it is loaded from.
            wanted: it was requested by name, and not because an ensemble needs it.
            above: the ensembles that need it.

        Raises:
            InvalidModel: it cannot be loaded; versions that were served stay in service.
            ShuttingDown: the loader is closing.
        """
        slot = self.slots.setdefault(name, ModelSlot(name))
        try:
            self._load_composing(name, source, above)
        except (InvalidModel, NotFound) as error:
            with slot.lock:
                slot.tried = source
                slot.abandon(str(error))
            raise InvalidModel(slot.fault) from error
        with slot.lock:
            if self.closing.is_set():
                raise ShuttingDown("the server is stopping; load it when it runs again")
            slot.wanted |= wanted
            if (replacement := slot.begin(source, self._make)) is not None:
                slot.finish(replacement, rebuild=True, timeout_s=self._timeout_s)
        if slot.fault:
            raise InvalidModel(slot.fault)
        self._refresh(name, but=above)

    def load_all(self, names: Iterable[str], *, begun: Callable[[], None] = lambda: None) -> None:
        """Load models of the repository, several at once; faults are logged and kept.

        Args:
            names: of the models.
            begun: called after all folders were read, before the first model is loaded.
        """
        plans: list[_Plan] = []
        for name in names:
            slot = self.slots.setdefault(name, ModelSlot(name))
            slot.wanted = True
            try:
                source = self.read(name)
            except FoveaError as error:
                self.refuse(name, error)
                continue
            with slot.lock:
                plans.append(_Plan(slot, source, slot.begin(source, self._make)))
        begun()
        with ThreadPoolExecutor(self._settings.model_load_thread_count, "load") as pool:
            for _ in pool.map(self._load_plain, plans):
                pass
        for plan in plans:
            self._load_ensemble(plan)
        tried = {plan.slot.name for plan in plans}
        for name in tried:
            self._refresh(name, but=tried)

    def _make(self, source: Source, version: int) -> ServedModel:
        name = source.config.name
        folder = source.folder / str(version)
        return ServedModel(
            name, version, folder, self._settings, source.config, self._find, self._cache
        )

    def _load_plain(self, plan: _Plan) -> None:
        slot = plan.slot
        if plan.replacement is None:
            self.refuse(slot.name, InvalidModel(slot.fault), plan.source)
        elif not plan.source.config.composing:
            with slot.lock:
                if not self.closing.is_set():
                    # Rebuilding comes last: it may take minutes, and other models must not wait.
                    slot.finish(plan.replacement, rebuild=False, timeout_s=self._timeout_s)

    def _load_ensemble(self, plan: _Plan) -> None:
        if plan.source.config.composing and plan.replacement is not None:
            self._try(plan.slot, plan.source)

    def _try(self, slot: ModelSlot, source: Source) -> None:
        try:
            self.load(slot.name, source, wanted=False)
        except FoveaError as error:
            self.refuse(slot.name, error, source)

    def refuse(self, name: str, error: Exception, source: Source | None = None) -> None:
        """Keep and log the reason why a model cannot be loaded."""
        log.error("model %s failed to load: %s", name, error)
        slot = self.slots.setdefault(name, ModelSlot(name))
        with slot.lock:
            slot.tried = source
            slot.abandon(str(error))

    def _load_composing(self, name: str, source: Source, above: tuple[str, ...]) -> None:
        """Load the models of an ensemble that are not ready, and compare their tensors."""
        composing, missing = source.config.composing, []
        for other in composing:
            if other in (name, *above) or name in self._composing_of(other):
                raise InvalidModel(
                    f"circular dependency between ensembles: {other} -> ... -> {name} -> {other}"
                )
            if self._ready(other):
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
            for version in sorted(versions - {-1, *self._ready(other)}):
                raise InvalidModel(
                    f"ensemble '{name}' depends on '{other}' whose required version {version} is "
                    "not loaded."
                )
        if composing:
            check_ensemble(source.config, lambda n, v: self._find(n, v).config)

    def _load_for(self, name: str, other: str, found: Source, above: tuple[str, ...]) -> None:
        slot = self.slots.get(other)
        try:
            if slot is not None and slot.fault and slot.tried == found:
                raise InvalidModel(slot.fault)
            self.load(other, found, wanted=False, above=(*above, name))
        except FoveaError as error:
            raise InvalidModel(
                f"ensemble '{name}' depends on '{other}' which has no loaded version. Model "
                f"'{other}' loading failed with error: {error}"
            ) from error

    def _composing_of(self, name: str) -> set[str]:
        """Collect the models that a loaded model runs, directly or through others."""
        slot = self.slots.get(name)
        if slot is None or slot.source is None or not slot.ready:
            return set()
        direct = set(slot.source.config.composing)
        return direct.union(*map(self._composing_of, direct))

    def _ready(self, name: str) -> tuple[int, ...]:
        slot = self.slots.get(name)
        return slot.ready if slot is not None else ()

    def _refresh(self, name: str, *, but: Collection[str] = ()) -> None:
        """Reload the ensembles that run a changed model, or waited for it.

        Args:
            name: of the model.
            but: waiting ensembles that have been tried already.
        """
        for slot in list(self.slots.values()):
            if name not in slot.composing:
                continue
            if slot.outdated:
                self._bind(slot)
            elif slot.name not in but and (source := slot.pending) is not None:
                self._try(slot, source)

    def _bind(self, slot: ModelSlot) -> None:
        """Bind an ensemble to its models as they are now; it fails if they do not fit."""
        assert slot.source is not None, "it is served"
        try:
            self.load(slot.name, slot.source, wanted=False)
        except ShuttingDown:
            return
        except FoveaError as error:
            with slot.lock:
                slot.fail(str(error), self._timeout_s)
            for above in self._ensembles_of(slot.name):
                self._bind(above)

    def rebuild(self) -> None:
        """Rebuild the engines that `load_all` has left to rebuild, one by one."""
        for slot in list(self.slots.values()):
            with slot.lock:
                if self.closing.is_set():
                    return
                rebuilt = slot.rebuild(self._timeout_s)
            if rebuilt:
                self._refresh(slot.name)

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model after its accepted requests; ensembles that run it first.

        Args:
            name: of the model; nothing happens if it is not loaded.
            dependents: also unload the models of an ensemble that were not requested by name and
                that no other ensemble runs.
        """
        slot = self.slots.get(name)
        if slot is None:
            return
        slot.wanted = False
        self._empty(slot)
        slot.tried, slot.fault = None, ""
        if dependents and slot.source is not None:
            for other in slot.source.config.composing:
                below = self.slots.get(other)
                if below is not None and not below.wanted and not self._ensembles_of(other):
                    self.unload(other, dependents=True)

    def _empty(self, slot: ModelSlot) -> None:
        for above in self._ensembles_of(slot.name):
            self._empty(above)
        slot.cancel()
        with slot.lock:
            slot.close(self._timeout_s)

    def _ensembles_of(self, name: str) -> list[ModelSlot]:
        """Find the ensembles that run a model and can answer."""
        return [
            slot
            for slot in list(self.slots.values())
            if slot.newest is not None
            and slot.source is not None
            and name in slot.source.config.composing
        ]

    def close(self) -> None:
        """Unload everything, ensembles before their models."""
        slots = list(self.slots.values())
        ensembles = [slot for slot in slots if slot.source and slot.source.config.composing]
        with ThreadPoolExecutor(8) as pool:
            for group in (ensembles, slots):
                for _ in pool.map(self._empty, group):
                    pass
