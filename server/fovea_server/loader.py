"""Loads and unloads models, in the order in which they need each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import FoveaError, InvalidModel
from fovea_server.ensembles import check_ensemble
from fovea_server.model import Find, ServedModel
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.settings import Settings
from fovea_server.slot import Replacement, Slot
from fovea_server.source import Source

log = logging.getLogger(__name__)


class Loader:
    """Fills the slots of a registry, and empties them.

    Any number of threads may load and unload; each model waits for itself only.

    Attributes:
        slots: of the models that were ever loaded, by name.
        closing: nothing is loaded any more.
    """

    def __init__(
        self,
        repository: ModelRepository,
        settings: Settings,
        find: Find,
        cache: ResponseCache | None,
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self.closing = threading.Event()
        self._repository = repository
        self._settings = settings
        self._find = find
        self._cache = cache

    def read(self, name: str) -> Source:
        """What the repository has of a model now.

        Raises:
            InvalidModel: it has none of that name, or one that cannot be used.
        """
        try:
            return Source.read(self._repository.root / name, name, self._settings)
        except OSError as error:
            raise InvalidModel(f"{error.filename} cannot be read: {error.strerror}") from error

    def load(
        self, name: str, source: Source, *, wanted: bool = True, above: tuple[str, ...] = ()
    ) -> None:
        """Load a model after those that it runs, and then the ensembles that waited for it.

        Args:
            name: of the model.
            source: what it is loaded from.
            wanted: it is asked for by its name, and not for another's sake.
            above: the ensembles for whose sake it is loaded.

        Raises:
            InvalidModel: it cannot be loaded; what was served is served still.
        """
        self._load_composing(name, source, above)
        slot = self.slots.setdefault(name, Slot(name))
        with slot.lock:
            slot.wanted |= wanted
            if (replacement := slot.begin(source, self._make)) is not None:
                slot.finish(replacement, rebuild=True, timeout_s=self._settings.exit_timeout_secs)
        if slot.fault:
            raise InvalidModel(slot.fault)
        if not above:
            self._wake(name)

    def load_all(self, names: Iterable[str], *, begun: Callable[[], None] = lambda: None) -> None:
        """Load models of the repository, several at once; faults are logged and kept.

        Args:
            names: of the models.
            begun: called when all have been looked at, and none is loaded yet.
        """
        plans = []
        for name in names:
            slot = self.slots.setdefault(name, Slot(name))
            slot.wanted = True
            try:
                source = self.read(name)
            except FoveaError as error:
                self._note(slot, error)
                continue
            with slot.lock:
                plans.append((slot, source, slot.begin(source, self._make)))
        begun()
        workers = self._settings.model_load_thread_count
        with ThreadPoolExecutor(workers, thread_name_prefix="load") as pool:
            for slot, source, replacement in plans:
                if replacement is not None and not source.config.composing:
                    pool.submit(self._finish, slot, replacement)
                elif slot.fault:
                    self._note(slot, InvalidModel(slot.fault))
        for slot, source, _ in plans:
            if source.config.composing and not slot.fault and not self.closing.is_set():
                try:
                    self.load(slot.name, source)
                except FoveaError as error:
                    self._note(slot, error)
        tried = {slot.name for slot, _, _ in plans}
        for name in tried:
            self._wake(name, but=tried)

    def _make(self, source: Source, version: int) -> ServedModel:
        name = source.config.message.name
        folder = source.folder / str(version)
        return ServedModel(
            name, version, folder, self._settings, source.config, self._find, self._cache
        )

    def _finish(self, slot: Slot, replacement: Replacement) -> None:
        with slot.lock:
            if not self.closing.is_set():
                # Rebuilding comes last: it may take minutes, and what others serve waits for none.
                slot.finish(replacement, rebuild=False, timeout_s=self._settings.exit_timeout_secs)

    def _note(self, slot: Slot, error: FoveaError) -> None:
        """Keep and log why a model is not loaded."""
        slot.fault = str(error)
        log.error("model %s failed to load: %s", slot.name, error)
        for model in slot.versions.values():
            model.abandon(slot.fault)

    def _load_composing(self, name: str, source: Source, above: tuple[str, ...]) -> None:
        """Load what an ensemble runs and is not ready, and compare their tensors."""
        if name in above:
            raise InvalidModel(
                f"circular dependency between ensembles: {name} -> ... -> {above[-1]} -> {name}"
            )
        composing, missing = source.config.composing, []
        for other in composing:
            if self._ready(other):
                continue
            try:
                found = self.read(other)
            except FoveaError:
                missing.append(other)
                continue
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
            check_ensemble(source.config.message, lambda n, v: self._find(n, v).config)

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

    def _ready(self, name: str) -> tuple[int, ...]:
        slot = self.slots.get(name)
        return slot.ready if slot is not None else ()

    def _wake(self, name: str, *, but: Collection[str] = ()) -> None:
        """Load the ensembles that were asked for and could not be without this model."""
        for slot in list(self.slots.values()):
            waits = slot.wanted and not slot.ready and slot.name not in but
            if waits and slot.tried is not None and name in slot.tried.config.composing:
                try:
                    self.load(slot.name, slot.tried)
                except FoveaError as error:
                    self._note(slot, error)

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model once it has finished what it has accepted; ensembles that run it first.

        Args:
            name: of the model; one that is not loaded is left as it is.
            dependents: unload also the models of an ensemble that nobody asked for by name and
                no other ensemble runs.
        """
        slot = self.slots.get(name)
        if slot is None:
            return
        slot.wanted = False
        self._empty(slot)
        if dependents and slot.source is not None:
            for other in slot.source.config.composing:
                below = self.slots.get(other)
                if below is not None and not below.wanted and not self._ensembles_of(other):
                    self.unload(other, dependents=True)

    def _empty(self, slot: Slot) -> None:
        for above in self._ensembles_of(slot.name):
            self._empty(above)
        with slot.lock:
            slot.close(self._settings.exit_timeout_secs)

    def _ensembles_of(self, name: str) -> list[Slot]:
        """Ensembles that run a model and can answer."""
        return [
            slot
            for slot in list(self.slots.values())
            if slot.newest is not None
            and slot.source is not None
            and name in slot.source.config.composing
        ]

    def close(self) -> None:
        """Unload everything, ensembles before what they run."""
        slots = list(self.slots.values())
        ensembles = [slot for slot in slots if self._is_ensemble(slot)]
        plain = [slot for slot in slots if not self._is_ensemble(slot)]
        with ThreadPoolExecutor(8) as pool:
            for group in (ensembles, plain):
                for _ in pool.map(self._empty, group):
                    pass

    @staticmethod
    def _is_ensemble(slot: Slot) -> bool:
        return slot.source is not None and bool(slot.source.config.composing)
