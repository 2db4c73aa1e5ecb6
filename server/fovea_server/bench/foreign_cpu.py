"""Measures the cores that other programs, and other guests of the host, take meanwhile."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil


class ForeignCpu:
    """CPU time since a moment that neither this process nor its children used.

    Args:
        cores: usable ones. Those of the machine beyond them are free for others.
    """

    def __init__(self, cores: int) -> None:
        self._places = os.sched_getaffinity(0)
        self._spare = len(self._places) - cores
        self._began = time.monotonic()
        self._busy_s, self._own_s = self._all(), _own()

    def taken(self) -> float:
        """Return how many cores were taken from this process in the mean."""
        seconds = time.monotonic() - self._began
        foreign_s = (self._all() - self._busy_s) - (_own() - self._own_s)
        return max(0.0, foreign_s / seconds - self._spare)

    def _all(self) -> float:
        """Return seconds of all programs on these cores, and those that a host has stolen."""
        every = psutil.cpu_times(percpu=True)
        mine = [every[place] for place in self._places if place < len(every)]
        busy = (one.user + one.nice + one.system + getattr(one, "steal", 0.0) for one in mine)
        return float(sum(busy))


def _own() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
