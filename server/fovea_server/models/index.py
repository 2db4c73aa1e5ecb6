"""The index of a repository: every model, its versions, and why one is not ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fovea_server.models.model import State
from fovea_server.models.slot import ModelSlot


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A version of a model in the repository's index; None for unknown fields."""

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None


def make_index(
    slots: Mapping[str, ModelSlot], names: Iterable[str], *, ready: bool
) -> list[IndexEntry]:
    """List every model, or every version that can answer, by name.

    Args:
        slots: models that were ever loaded.
        names: further models in the repository.
        ready: only versions that can answer.
    """
    every = sorted({*slots, *names})
    return [entry for name in every for entry in _entries(name, slots.get(name), ready)]


def _entries(name: str, slot: ModelSlot | None, ready: bool) -> Iterator[IndexEntry]:
    versions = dict(sorted(slot.versions.items())) if slot is not None else {}
    fault = slot.fault if slot is not None else ""
    for version, model in versions.items():
        state = model.state
        if state is State.READY or not ready:
            reason = model.failure or model.reason if state is State.UNAVAILABLE else None
            if state is State.READY and fault:
                reason = f"the last reload failed: {fault}"
            yield IndexEntry(name, str(version), state.value, reason)
    if versions or ready:
        return
    if fault:
        yield IndexEntry(name, None, State.UNAVAILABLE.value, fault)
    else:
        yield IndexEntry(name)
