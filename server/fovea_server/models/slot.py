"""A model by its name: its versions, and how new ones take the place of old ones."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.ignored_settings import warn_of_ignored_settings
from fovea_server.models.model import ServedModel, State
from fovea_server.models.source import Source

# A request may have found an old version and not have entered its queue yet.
_GRACE_S = 0.05

Make = Callable[[Source, int], ServedModel]
"""A version of a source, not loaded yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """Versions that are to be served from now on.

    Attributes:
        source: what they come from.
        kept: those that are served already, and have not changed.
        fresh: those that are to be loaded.
    """

    source: Source
    kept: dict[int, ServedModel]
    fresh: dict[int, ServedModel]


class ModelSlot:
    """The place of one model in the registry.

    Attributes:
        lock: whoever loads or unloads it holds this.
        versions: the last known of each version, unloaded ones among them.
        newest: the newest version that can answer; None while none can.
        source: what is served comes from this; None before the first load.
        tried: what the last load was made from; None after it was unloaded by its name, and where
            the repository could not be read.
        wanted: it was asked for by its name, and not unloaded since.
        fault: why the last load failed; empty where it did not.
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
        """Models that an ensemble runs; of what is served, where something is."""
        source = self.source if self.ready else self.tried
        return frozenset(source.config.composing if source is not None else ())

    @property
    def outdated(self) -> bool:
        """Whether a model that it runs has been loaded again since."""
        return any(self.versions[version].outdated for version in self.ready)

    @property
    def pending(self) -> Source | None:
        """What is to be served, and could not be so far; None where nothing waits."""
        waits = not self.ready and (self.wanted or self.fault)
        return self.tried if waits else None

    def unserved(self) -> list[str]:
        """What of it is not served though it should be, and why."""
        if not self.wanted:
            return []
        if self.fault and not self.versions:
            return [f"{self.name}: {self.fault}"]
        return [f"{self.name}: {m.unserved}" for m in self.versions.values() if m.unserved]

    def begin(self, source: Source, make: Make) -> Replacement | None:
        """Decide what is to be loaded; `finish` does it.

        Returns:
            None where there is nothing that can be: `fault` says why.
        """
        self.tried, self.fault = source, ""
        for model in self.versions.values():
            if model.failure:
                # What has died answers nobody, and holds memory that its successor needs.
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
            # Nothing answers that these could put out of sight.
            self.versions = self._still_there(source) | fresh
        return self._next

    def finish(self, replacement: Replacement, *, rebuild: bool, timeout_s: float) -> None:
        """Load what is fresh; then it is served, and what it replaces is unloaded.

        Where one version fails, none is exchanged: `fault` says why. Nor is one before its engine
        is built again, where `rebuild` has still to do that.

        Args:
            replacement: of `begin`; nothing is done where another one has begun since.
            rebuild: build engines again where they need it, and may be.
            timeout_s: time for what is replaced to finish what it has accepted.
        """
        if replacement is not self._next:
            return
        if replacement.fresh:
            warn_of_ignored_settings(replacement.source.config.message)
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
        """Load nothing of what was begun, and keep why."""
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
        """What answers now, and will not when the new versions are served."""
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
        """Build engines again where `finish` has left that to do.

        Args:
            timeout_s: time for what is replaced to finish what it has accepted.

        Returns:
            Whether other versions are served than before.
        """
        before = [self.versions[version] for version in self.ready]
        for model in self.versions.values():
            model.rebuild()
        if self._next is not None:
            self.finish(self._next, rebuild=True, timeout_s=timeout_s)
        self.elect()
        return before != [self.versions[version] for version in self.ready]

    def cancel(self) -> None:
        """Let a rebuild stop, now or as soon as it has begun."""
        coming = self._next.fresh.values() if self._next is not None else ()
        for model in [*self.versions.values(), *coming]:
            model.cancel()

    def fail(self, reason: str, timeout_s: float) -> None:
        """Serve it no more, as it cannot work."""
        served = [self.versions[version] for version in self.ready]
        self.close(timeout_s)
        self.fault = reason
        for model in served:
            model.fail(reason)

    def elect(self) -> None:
        """Find the newest version that can answer."""
        ready = self.ready
        self.newest = self.versions[ready[-1]] if ready else None

    def close(self, timeout_s: float) -> None:
        """Unload every version, once it has finished what it has accepted."""
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
    """Give what loading or unloading has freed back to the system."""
    ctypes.CDLL(None).malloc_trim(0)
