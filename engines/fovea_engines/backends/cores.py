"""Counts the cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the cores that the affinity mask and the CPU quota allow, at least 1.

    `os.cpu_count()` is the machine's number: in a container with a quota of 2 on 64 cores, 64
    threads would be throttled most of the time.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [_quota(folder) for folder in _own_cgroups()]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota)]))


def _own_cgroups() -> list[Path]:
    """Return the cgroup folders of this process: v2, then v1's cpu controller, root included."""
    folders = [CGROUPS, CGROUPS / "cpu"]
    if OWN_CGROUP.is_file():
        for line in OWN_CGROUP.read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers in ("", "cpu", "cpu,cpuacct"):
                base = CGROUPS / "cpu" if controllers else CGROUPS
                path = base / own.lstrip("/")
                folders += [path, *(up for up in path.parents if up.is_relative_to(base))]
    return folders


def _quota(folder: Path) -> float | None:
    """Return the CPU quota of one cgroup in cores; None without a limit."""
    v2, v1 = folder / "cpu.max", folder / "cpu.cfs_quota_us"
    if v2.is_file():
        quota, period = v2.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    if v1.is_file():
        limit = int(v1.read_text())
        return limit / int((folder / "cpu.cfs_period_us").read_text()) if limit > 0 else None
    return None
