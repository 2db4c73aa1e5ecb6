"""Metrics of a process, for Ray: its agent on each node exports them to Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import cast

from ray.serve.metrics import Gauge

from fovea_server.observability.family import Family

log = logging.getLogger(__name__)

_INTERVAL_S = 5.0


async def export(read: Callable[[], Iterable[Family]]) -> None:
    """Hand families over to Ray again and again."""
    gauges = Gauges()
    while True:
        try:
            gauges.update(read())
        except Exception:
            log.exception("metrics could not be handed to Ray; the next try follows")
        await asyncio.sleep(_INTERVAL_S)


class Gauges:
    """Gauges of Ray with the values of families; Ray adds the deployment and the replica.

    They are gauges, also of what only counts up, because Ray's counters cannot be set.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._told: set[tuple[str, tuple[tuple[str, str], ...]]] = set()

    def update(self, families: Iterable[Family]) -> None:
        """Hand over the present values, and 0 for a version that is gone: Ray cannot forget it."""
        before, self._told = self._told, set()
        for family in families:
            for suffix in dict.fromkeys(suffix for suffix, _, _ in family.samples):
                self._set(family, suffix)
        for name, tags in before - self._told:
            self._gauges[name].set(0, dict(tags))

    def _set(self, family: Family, suffix: str) -> None:
        name = family.name + suffix
        samples = [(labels, value) for of, labels, value in family.samples if of == suffix]
        if name not in self._gauges:
            self._keys[name] = _names(labels for labels, _ in samples)
            # Ray declares one key, and takes any number.
            make = cast("Callable[[str, str, tuple[str, ...]], Gauge]", Gauge)
            self._gauges[name] = make(name, family.help, self._keys[name])
        for labels, value in samples:
            tags = {key: labels.get(key, "") for key in self._keys[name]}
            self._told.add((name, tuple(tags.items())))
            self._gauges[name].set(value, tags)


def _names(labels: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in labels for name in each))
