"""One model with all its versions, and their replacement by new versions."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from fovea_preprocess.errors import ShuttingDown
from fovea_server.models.config.config_check import warn_of_settings
from fovea_server.models.model import ServedModel, State
from fovea_server.models.source import Source

log = logging.getLogger(__name__)

# Time in seconds between the replacement of versions and the closing of the old versions. A request
# may have looked up an old version but not entered its queue yet.
_GRACE_S = 0.05


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A version of a model in the repository's index; fields that are not known are None.

    Attributes:
        name: name of the model.
        version: number of the version.
        state: state of the version, in Triton's terms.
        reason: why the version is unavailable, or why the last reload failed.
        current: True if the version was promoted, and gets requests that name no version.
    """

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None
    current: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Replacement:
    """The versions of a source that will replace the served versions.

    Attributes:
        source: the source from which the versions are loaded.
        kept: versions that are served already and have not changed.
        fresh: versions that must be loaded.
    """

    source: Source
    kept: dict[int, ServedModel]
    fresh: dict[int, ServedModel]

    @property
    def versions(self) -> dict[int, ServedModel]:
        return self.kept | self.fresh

    def leave_out(self, broken: Collection[int], *, answers: bool) -> _Replacement | None:
        """Drop broken versions; return None if the served versions must stay in service instead.

        The replacement is possible only if a version was promoted and at least one version loads.
        If the promoted version itself is broken, the replacement is possible only if no served
        version can respond (`answers` is False).
        """
        promoted = self.source.history.current
        left = self.versions.keys() - {*broken}
        if promoted is None or not left or (answers and promoted in broken):
            return None
        return replace(self, fresh={v: m for v, m in self.fresh.items() if v in left})


class ModelSlot:
    """One model with all its versions. A lock serialises loads and unloads of the model.

    Args:
        name: name of the model.
        make: creates the object of a version from a source, without loading the version.
        timeout_s: time in seconds for a version to finish accepted requests before it is unloaded.
        closing: set when the server stops.

    Attributes:
        versions: the latest object of each version by its number, ascending; includes unloaded
            versions.
        source: source of the versions in service; None before the first load.
        tried: source of the last load; None after an unload by name, or if the repository could not
            be read.
        wanted: True if a load of the model was requested by name, and the model was not unloaded
            since.
        required: True if the server is not ready without the model.
        fault: the reason why the last load failed; empty if it succeeded.
        promoted: the promoted version. While it can respond, it gets the requests without a
            version number. None if the newest version gets these requests.
        upcoming: a version that is loaded because it is about to be promoted; None if there is no
            such version.
        requested: versions that were loaded by number, in addition to the served versions.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Source, int], ServedModel],
        timeout_s: float,
        closing: threading.Event,
    ) -> None:
        self.name = name
        self.versions: dict[int, ServedModel] = {}
        self.source: Source | None = None
        self.tried: Source | None = None
        self.wanted = self.required = False
        self.fault = ""
        self.promoted: int | None = None
        self.upcoming: int | None = None
        self.requested: frozenset[int] = frozenset()
        self._make = make
        self._timeout_s = timeout_s
        self._closing = closing
        self._lock = threading.RLock()
        self._next: _Replacement | None = None

    @property
    def ready(self) -> tuple[int, ...]:
        """Versions that can respond now, ascending."""
        return tuple(v for v, m in self.versions.items() if m.state is State.READY)

    @property
    def current(self) -> ServedModel | None:
        """The version that gets requests without a version number.

        It is None if no version can respond.
        """
        versions, promoted = self.versions, self.promoted
        if promoted in versions and versions[promoted].state is State.READY:
            return versions[promoted]
        for model in reversed(versions.values()):
            if model.state is State.READY:
                return model
        return None

    @property
    def composing(self) -> frozenset[str]:
        """Names of the models that the ensemble runs.

        The names are from the configuration in service. If no version can respond, they are from
        the configuration of the last load.
        """
        source = self.source if self.current else self.tried
        return frozenset(source.config.composing if source is not None else ())

    @property
    def outdated(self) -> bool:
        """True if a model that the ensemble runs was reloaded since the ensemble was loaded."""
        return any(self.versions[version].outdated for version in self.ready)

    @property
    def pending(self) -> Source | None:
        """The source that should be served but could not be loaded yet; otherwise None."""
        return self.tried if not self.current and (self.wanted or self.fault) else None

    def unserved(self) -> list[str]:
        """List the versions that must respond before the server is ready, with the reasons."""
        if not self.required:
            return []
        if self.fault and not self.versions:
            return [f"{self.name}: {self.fault}"]
        return [f"{self.name}: {m.unserved}" for m in self.versions.values() if m.unserved]

    def entries(self, ready: bool = False) -> Iterator[IndexEntry]:
        """Yield the index entries of all versions, or only of the versions that can respond.

        A model without versions has one entry, unless `ready` is True.
        """
        versions, current = self.versions, None if self.promoted is None else self.current
        for version, model in versions.items():
            state = model.state
            if state is State.READY or not ready:
                reason = model.reason if state is State.UNAVAILABLE else None
                if state is State.READY:
                    reason = self._remark
                yield IndexEntry(self.name, str(version), state.value, reason, model is current)
        if not versions and not ready:
            state_of_none = State.UNAVAILABLE.value if self.fault else None
            yield IndexEntry(self.name, None, state_of_none, self.fault or None)

    @property
    def _remark(self) -> str | None:
        """The reason why the last reload failed, or why the promoted version cannot respond."""
        if self.fault:
            return f"the last reload failed: {self.fault}"
        if self.promoted is None or self.promoted in self.versions:
            return None
        return (
            f"version {self.promoted} was promoted, but its folder is missing, so the newest "
            "version is current: restore the folder, or promote another version"
        )

    def load(self, source: Source) -> str:
        """Replace the served versions with the versions of a source; see `begin` and `finish`.

        Returns:
            The reason why the load failed; empty if it succeeded.
        """
        with self._lock:
            self.finish(self.begin(source), rebuild=True)
            return self.fault

    def begin(self, source: Source) -> Source:
        """Decide which versions to load; a later call of `finish` loads them.

        Returns:
            The source for `finish`. If the previous source was read later than `source`, the
            returned source has the promotion history of the previous source.

        Raises:
            InvalidModel: see `Source.served`.
        """
        with self._lock:
            if self.tried is not None and source.read_at < self.tried.read_at:
                # A poll has read the files before a promotion, but calls this function after the
                # promotion.
                source = replace(source, history=self.tried.history)
            self.tried, self.fault = source, ""
            for model in self.versions.values():
                if model.failure:
                    # A failed version rejects all requests, and holds memory that its replacement
                    # needs.
                    model.close(0)
            extra = {self.upcoming, *self.requested}
            chosen = {*source.served, *(v for v in source.versions if v in extra)}
            # The previously promoted version stays loaded, because clients may request it by
            # number, and because a rollback to it must be quick.
            if source.history.current is not None:
                chosen |= {*source.history.earlier[-1:]} & {*self.ready} & {*source.versions}
            kept = {
                version: model
                for version, model in self.versions.items()
                if version in chosen
                and model.state is State.READY
                and not model.outdated
                and self.source is not None
                and source.same_version(self.source, version)
            }
            fresh = {v: self._make(source, v) for v in chosen if v not in kept}
            self._next = _Replacement(source, kept, fresh)
            if source.history.current in kept:
                # The promoted version is loaded already, so it becomes current before the other
                # versions are loaded.
                self.promoted = source.history.current
            if not self.ready:
                # No version can respond, so the index may show the fresh versions immediately.
                self._show(source, fresh)
            return source

    def finish(self, source: Source, *, rebuild: bool) -> None:
        """Load the fresh versions, serve them, and unload the versions that they replace.

        If a version cannot be loaded, the served versions stay in service, unless
        `_Replacement.leave_out` allows the replacement; `fault` has the reason. The served versions
        also stay in service until an engine that must be rebuilt is rebuilt. The call does nothing
        if another load has begun since the call of `begin`.

        Raises:
            ShuttingDown: the server is stopping.
        """
        with self._lock:
            if self._closing.is_set():
                raise _stopping_error()
            if self._next is not None and self._next.source is source:
                self._load_next(self._next, rebuild=rebuild)
                if self.fault and self._closing.is_set():
                    raise _stopping_error()

    def _load_next(self, replacement: _Replacement, *, rebuild: bool) -> None:
        if replacement.fresh:
            warn_of_settings(replacement.source.config)
        for model in replacement.fresh.values():
            model.load(rebuild=rebuild)
        broken = {v: m for v, m in replacement.fresh.items() if m.state is State.UNAVAILABLE}
        if broken:
            self.fault = "".join(
                f"version {v} is at {m.state} state: {m.reason};" for v, m in broken.items()
            )
            before = [v for v in self.ready if self.versions[v] is not replacement.fresh.get(v)]
            if (usable := replacement.leave_out(broken, answers=bool(before))) is None:
                self._give_up(replacement)
                return
            replacement = usable
            self.versions = {v: m for v, m in self.versions.items() if m not in broken.values()}
        states = {model.state for model in replacement.fresh.values()}
        if State.LOADING not in states or all(
            self.versions[v] is replacement.versions.get(v) for v in self.ready
        ):
            # A served version is not replaced while an engine of the replacement must be rebuilt.
            self._exchange(replacement)

    def _give_up(self, replacement: _Replacement) -> None:
        self._next = None
        for model in replacement.fresh.values():
            if model.state is State.READY:
                model.close(self._timeout_s)

    def _exchange(self, replacement: _Replacement) -> None:
        self._next = None
        new = replacement.versions
        past = [m for v, m in self.versions.items() if m is not new.get(v) and m.is_live]
        self._show(replacement.source, new)
        self.source = replacement.source
        self.promoted = self.source.history.current
        if past:
            time.sleep(_GRACE_S)
            for model in past:
                model.close(self._timeout_s)
                if model.version not in new:
                    log.info("model %s version %d is unloaded", model.name, model.version)
            trim()

    def _show(self, source: Source, new: dict[int, ServedModel]) -> None:
        """Set `versions` in one step: new versions, and old versions with an existing directory."""
        past = {v: m for v, m in self.versions.items() if v in source.versions}
        self.versions = dict(sorted((past | new).items()))

    def rebuild(self) -> bool:
        """Rebuild the engines that `finish` has left for rebuilding.

        Returns:
            True if the served versions changed.
        """
        with self._lock:
            if self._closing.is_set():
                return False
            before = [self.versions[version] for version in self.ready]
            for model in self.versions.values():
                model.load(rebuild=True)
            if self._next is not None:
                self._load_next(self._next, rebuild=True)
            return before != [self.versions[version] for version in self.ready]

    def refuse(self, fault: str, source: Source | None) -> None:
        """End the present load, and store the reason why the load failed."""
        with self._lock:
            self.tried, self.fault, self._next = source, fault, None
            for model in self.versions.values():
                if model.state is State.LOADING:
                    model.fail(fault)

    def cancel(self) -> None:
        """Stop a warm-up or a rebuild, now or as soon as it begins."""
        replacement = self._next
        fresh = () if replacement is None else replacement.fresh.values()
        for model in [*self.versions.values(), *fresh]:
            model.cancel()

    def close(self, fault: str = "", reason: str = "unloaded") -> None:
        """Finish the accepted requests of every version, and unload it; cancel a rebuild.

        Args:
            fault: the reason for an unload that no request caused; otherwise empty.
            reason: the reason that the versions report if `fault` is empty.
        """
        self.cancel()
        with self._lock:
            self._next, self.fault = None, fault or self.fault
            live = [model for model in self.versions.values() if model.is_live]
            for model in live:
                model.retire()
            for model in live:
                model.close(self._timeout_s, fault or reason)
            if live:
                trim()


def _stopping_error() -> ShuttingDown:
    return ShuttingDown("the server is stopping: load the model after its restart")


def trim() -> None:
    """Return freed memory to the operating system."""
    ctypes.CDLL(None).malloc_trim(0)
