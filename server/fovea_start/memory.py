"""The memory of this machine, or of its container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory of the machine or its container, and the size of /dev/shm (0: none), bytes."""

    total: int
    available: int
    shared: int


def memory(root: Path) -> Memory:
    """Read the memory of the machine, cut to the cgroup's limit, and the size of dev/shm."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    # A container sees the host in /proc, and its own limit at the root of /sys/fs/cgroup.
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = int((root / "sys/fs/cgroup" / limit_file).read_text())
            used = int((root / "sys/fs/cgroup" / used_file).read_text())
        except (OSError, ValueError):  # ValueError: the limit is "max"
            continue
        total, available = min(total, limit), min(available, max(0, limit - used))
    try:
        shm = os.statvfs(root / "dev/shm")
    except OSError:
        return Memory(total, available, 0)
    return Memory(total, available, shm.f_frsize * shm.f_blocks)
