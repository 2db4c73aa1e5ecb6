"""Exports the metrics of a process to Ray. Ray's agent on each node exports them to Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ray.serve.metrics import Gauge

from fovea_server.metrics.metrics import with_former_names
from fovea_server.observability.histogram import Family

if TYPE_CHECKING:
    from fovea_server.ray.forwarder import Forwarder

# Names of members that identify the entries of a list, so that equal entries are added.
_KEYS = ("name", "version", "batch_size")
_LATEST = "last_inference"

log = logging.getLogger(__name__)

_INTERVAL_S = 5.0


def add_documents(documents: Sequence[Any]) -> Any:
    """Return the sum of JSON documents of the same form.

    Integers are added. Of the time of the last request, the latest is taken. All other values are
    taken from the first document.
    """
    first = documents[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for each in documents for name in each)
        return {name: _field(name, [d[name] for d in documents if name in d]) for name in names}
    if isinstance(first, list):
        entries: dict[tuple[Any, ...], list[Any]] = {}
        for entry in (entry for each in documents for entry in each):
            entries.setdefault(tuple(entry.get(key) for key in _KEYS), []).append(entry)
        return [add_documents(same) for same in entries.values()]
    return sum(documents) if type(first) is int else first


def _field(name: str, values: Sequence[Any]) -> Any:
    if name == _LATEST:
        return max(values)
    return values[0] if name in _KEYS else add_documents(values)


async def statistics(
    forwarder: Forwarder, version: int | None = None, *, v2: bool
) -> dict[str, Any] | None:
    """Return the sum of the counters of all running replicas of a model.

    If no replica has counters, return None.
    """
    answers = await forwarder.ask_all("statistics", version, v2)
    found = [answer for answer in answers if answer is not None]
    return add_documents(found) if found else None


async def v2_statistics(
    forwarders: Mapping[str, Forwarder], name: str, version: int | None
) -> dict[str, Any] | None:
    """Return the sum of a model's counters in the form of the v2 protocol.

    If `name` is "", return the counters of all models.
    """
    chosen = {name: forwarders[name]} if name in forwarders else forwarders
    if name and name not in forwarders:
        return None
    models: list[Any] = []
    for forwarder in chosen.values():
        found = await statistics(forwarder, version, v2=True)
        models += found["model_stats"] if found else ()
    return {"model_stats": models} if models else None


async def export(read: Callable[[], Iterable[Family]]) -> None:
    """Export metrics to Ray in regular intervals. This coroutine does not end."""
    gauges = Gauges()
    while True:
        try:
            gauges.update(read())
        except Exception:
            log.exception("metrics could not be exported to Ray; retrying")
        await asyncio.sleep(_INTERVAL_S)


class Gauges:
    """Ray gauges with the values of Fovea's metrics. Ray adds the deployment and the replica.

    Fovea's counters are exported as gauges, because Ray's counters cannot be set to a value.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._exported: set[tuple[str, tuple[tuple[str, str], ...]]] = set()

    def update(self, families: Iterable[Family]) -> None:
        """Export current values, also under the former names of metrics.

        Values of removed versions become 0, because Ray cannot remove them.
        """
        before, self._exported = self._exported, set()
        for family in with_former_names(families):
            for suffix in dict.fromkeys(suffix for suffix, _, _ in family.samples):
                self._set(family, suffix)
        for name, tags in before - self._exported:
            self._gauges[name].set(0, dict(tags))

    def _set(self, family: Family, suffix: str) -> None:
        name = family.name + suffix
        samples = [(labels, value) for of, labels, value in family.samples if of == suffix]
        if name not in self._gauges:
            self._keys[name] = _names(labels for labels, _ in samples)
            # Ray's annotation allows only one key, but the function accepts any number of keys.
            make = cast("Callable[[str, str, tuple[str, ...]], Gauge]", Gauge)
            self._gauges[name] = make(name, family.help, self._keys[name])
        for labels, value in samples:
            tags = {key: labels.get(key, "") for key in self._keys[name]}
            self._exported.add((name, tuple(tags.items())))
            self._gauges[name].set(value, tags)


def _names(labels: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in labels for name in each))
