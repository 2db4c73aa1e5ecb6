"""The versions of one model, and their replacement by new ones."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.config_check import warn_of_ignored_settings
from fovea_server.models.model import ServedModel, State
from fovea_server.models.source import Source

# A request may have looked an old version up and not have entered its queue yet.
_GRACE_S = 0.05

Make = Callable[[Source, int], ServedModel]
"""Makes a version of a source, not loaded yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """Versions that are to replace those in service.

    Attributes:
        kept: served already, and unchanged.
        fresh: to be loaded.
    """

    source: Source
    kept: dict[int, ServedModel]
    fresh: dict[int, ServedModel]


class ModelSlot:
    """One model in the registry, with all its versions.

    Attributes:
        lock: held while it is loaded or unloaded.
        versions: the latest of each version, also unloaded ones.
        newest: the newest version that can answer; None while none can.
        source: of the versions in service; None before the first load.
        tried: source of the last load; None after it was unloaded by name, and where the
            repository could not be read.
        wanted: it was requested by name, and not unloaded since.
        fault: the reason why the last load failed; empty if it did not.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.versions: dict[int, ServedModel] = {}
        self.newest: ServedModel | None = None
        self.source: Source | None = None
        self.tried: Source | None = None
        self.wanted = False
        self.fault = ""
        self._next: Replacement | None = None

    @property
    def ready(self) -> tuple[int, ...]:
        """Versions that can answer now, ascending."""
        return tuple(sorted(v for v, m in self.versions.items() if m.state is State.READY))

    @property
    def composing(self) -> frozenset[str]:
        """Models that the ensemble runs, as it is served or else as it was last tried."""
        source = self.source if self.ready else self.tried
        return frozenset(source.config.composing if source is not None else ())

    @property
    def outdated(self) -> bool:
        """True if a model of the ensemble has been loaded again since."""
        return any(self.versions[version].outdated for version in self.ready)

    @property
    def pending(self) -> Source | None:
        """The source that should be served but could not be loaded so far; else None."""
        waits = not self.ready and (self.wanted or self.fault)
        return self.tried if waits else None

    def unserved(self) -> list[str]:
        """List the versions that are not served although they should be, with reasons."""
        if not self.wanted:
            return []
        if self.fault and not self.versions:
            return [f"{self.name}: {self.fault}"]
        return [f"{self.name}: {m.unserved}" for m in self.versions.values() if m.unserved]

    def begin(self, source: Source, make: Make) -> Replacement | None:
        """Decide which versions to load; `finish` loads them.

        Returns:
            None if no version can be loaded; `fault` has the reason.
        """
        self.tried, self.fault = source, ""
        for model in self.versions.values():
            if model.failure:
                # A dead version answers no request, and holds memory that its successor needs.
                model.close(0)
        try:
            chosen = source.served()
        except InvalidModel as error:
            self.fault = str(error)
            return None
        kept = {
            version: model
            for version, model in self.versions.items()
            if version in chosen
            and model.state is State.READY
            and not model.outdated
            and self.source is not None
            and source.same_version(self.source, version)
        }
        fresh = {version: make(source, version) for version in chosen if version not in kept}
        self._next = Replacement(source, kept, fresh)
        if not self.ready:
            # No version in service is hidden by these.
            self.versions = self._still_there(source) | fresh
        return self._next

    def finish(self, replacement: Replacement, *, rebuild: bool, timeout_s: float) -> None:
        """Load the fresh versions, serve them, and unload those that they replace.

        If one version fails, none is replaced: `fault` has the reason. Nor is one while
        an engine is still to be rebuilt by `rebuild`.

        Args:
            replacement: from `begin`; nothing happens if another one has begun since.
            rebuild: rebuild engines that need and allow it.
            timeout_s: time for replaced versions to finish accepted requests.
        """
        if replacement is not self._next:
            return
        if replacement.fresh:
            warn_of_ignored_settings(replacement.source.config)
        for model in replacement.fresh.values():
            model.load()
            if rebuild:
                model.rebuild()
        states = {model.state for model in replacement.fresh.values()}
        if State.UNAVAILABLE in states:
            self._refuse(replacement, timeout_s)
        elif State.LOADING not in states or not self._displaced(replacement):
            self._exchange(replacement, timeout_s)

    def abandon(self, fault: str) -> None:
        """Give up the load that was begun, and keep the reason."""
        self.fault, self._next = fault, None
        for model in self.versions.values():
            model.abandon(fault)

    def _refuse(self, replacement: Replacement, timeout_s: float) -> None:
        self._next = None
        broken = [m for m in replacement.fresh.values() if m.state is State.UNAVAILABLE]
        self.fault = "".join(
            f"version {m.version} is at {m.state} state: {m.reason};" for m in broken
        )
        for model in replacement.fresh.values():
            if model.state is State.READY:
                model.close(timeout_s)

    def _displaced(self, replacement: Replacement) -> list[ServedModel]:
        """List the versions in service that the new ones replace."""
        new = replacement.kept | replacement.fresh
        return [
            m for v, m in self.versions.items() if m is not new.get(v) and m.state is State.READY
        ]

    def _exchange(self, replacement: Replacement, timeout_s: float) -> None:
        self._next = None
        new = replacement.kept | replacement.fresh
        past = [m for v, m in self.versions.items() if m is not new.get(v) and m.is_live]
        self.versions = self._still_there(replacement.source) | new
        self.source = replacement.source
        self.elect()
        if past:
            time.sleep(_GRACE_S)
            for model in past:
                model.close(timeout_s)
            trim()

    def _still_there(self, source: Source) -> dict[int, ServedModel]:
        return {v: m for v, m in self.versions.items() if v in source.versions}

    def rebuild(self, timeout_s: float) -> bool:
        """Rebuild the engines that `finish` has left to rebuild.

        Args:
            timeout_s: time for replaced versions to finish accepted requests.

        Returns:
            True if the versions in service have changed.
        """
        before = [self.versions[version] for version in self.ready]
        for model in self.versions.values():
            model.rebuild()
        if self._next is not None:
            self.finish(self._next, rebuild=True, timeout_s=timeout_s)
        self.elect()
        return before != [self.versions[version] for version in self.ready]

    def cancel(self) -> None:
        """Stop a rebuild, now or as soon as it begins."""
        coming = self._next.fresh.values() if self._next is not None else ()
        for model in [*self.versions.values(), *coming]:
            model.cancel()

    def fail(self, reason: str, timeout_s: float) -> None:
        """Take all versions out of service, for this reason."""
        served = [self.versions[version] for version in self.ready]
        self.close(timeout_s)
        self.fault = reason
        for model in served:
            model.fail(reason)

    def elect(self) -> None:
        """Update `newest`."""
        ready = self.ready
        self.newest = self.versions[ready[-1]] if ready else None

    def close(self, timeout_s: float) -> None:
        """Unload every version after its accepted requests."""
        live = [model for model in self.versions.values() if model.is_live]
        self.newest = None
        self._next = None
        for model in live:
            model.retire()
        for model in live:
            model.close(timeout_s)
        if live:
            trim()


def trim() -> None:
    """Return memory that loading or unloading has freed to the system."""
    ctypes.CDLL(None).malloc_trim(0)
