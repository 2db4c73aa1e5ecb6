"""Counters of all replicas of a model, as one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fovea_server.ray.forwarder import Forwarder

# What tells the entries of a list apart.
_KEYS = ("name", "version", "batch_size")
_LATEST = "last_inference"


def added(documents: Sequence[Any]) -> Any:
    """Add the numbers of JSON documents of one form; everything else is that of the first."""
    first = documents[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for each in documents for name in each)
        return {name: _field(name, [d[name] for d in documents if name in d]) for name in names}
    if isinstance(first, list):
        entries: dict[tuple[Any, ...], list[Any]] = {}
        for entry in (entry for each in documents for entry in each):
            entries.setdefault(tuple(entry.get(key) for key in _KEYS), []).append(entry)
        return [added(same) for same in entries.values()]
    return sum(documents) if type(first) is int else first


def _field(name: str, values: Sequence[Any]) -> Any:
    if name == _LATEST:
        return max(values)
    return values[0] if name in _KEYS else added(values)


async def statistics(
    forwarder: Forwarder, version: int | None = None, *, v2: bool
) -> dict[str, Any] | None:
    """Ask all replicas of a model that run for its counters; None where none has them."""
    answers = await forwarder.ask_all("statistics", version, v2)
    found = [answer for answer in answers if answer is not None]
    return added(found) if found else None


async def v2_statistics(
    forwarders: Mapping[str, Forwarder], name: str, version: int | None
) -> dict[str, Any] | None:
    """Add the counters of one model, or of all where the name is empty, as the v2 protocol."""
    chosen = {name: forwarders[name]} if name in forwarders else forwarders
    if name and name not in forwarders:
        return None
    models: list[Any] = []
    for forwarder in chosen.values():
        found = await statistics(forwarder, version, v2=True)
        models += found["model_stats"] if found else ()
    return {"model_stats": models} if models else None
