"""Reads what this machine has for inference, and loads nothing heavy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from fovea_engines.backends.backend import BackendInfo
from fovea_engines.backends.cores import usable_cores
from fovea_engines.backends.registry import available_backends
from fovea_engines.device import cpu_flags, processor_name, visible_gpus

# Name for people -> the flag in /proc/cpuinfo.
_CPU_FEATURES = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX-VNNI": "avx_vnni",
    "AVX512-VNNI": "avx512_vnni",
    "AMX-INT8": "amx_int8",
}
# Distribution -> the module it brings.
_GPU_DISTRIBUTIONS = {
    "tensorrt": "tensorrt",
    "tensorrt-rtx-cu13-bindings": "tensorrt_rtx_bindings",
    "pycuda": "pycuda",
    "cuda-bindings": "cuda",
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor.

    Attributes:
        usable: cores that affinity and cgroup quota leave to this process.
        features: keys of `_CPU_FEATURES` that it has; None where they cannot be read.
    """

    name: str
    cores: int
    usable: int
    features: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory of the machine or its container, and the size of /dev/shm (0: none), bytes."""

    total: int
    available: int
    shared: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU that this process may use, and its memory in MiB."""

    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that `fovea doctor` reads.

    Attributes:
        driver: version of the NVIDIA driver; None without one.
        gpu_packages: installed distribution -> version, of those that GPU backends need.
    """

    cpu: Cpu
    memory: Memory
    backends: tuple[BackendInfo, ...]
    driver: str | None
    gpus: tuple[Gpu, ...]
    gpu_packages: dict[str, str]


def look(root: Path = Path("/")) -> Machine:
    """Read this machine; /proc, /sys and /dev are in `root`."""
    return Machine(
        cpu=Cpu(processor_name(), os.cpu_count() or 1, usable_cores(), cpu_features(root)),
        memory=memory(root),
        backends=available_backends(),
        driver=driver_version(root),
        gpus=tuple(Gpu(gpu.name, size >> 20) for gpu, size in visible_gpus()),
        gpu_packages=_installed(),
    )


def cpu_features(root: Path) -> tuple[str, ...] | None:
    """Read the instruction sets in proc/cpuinfo; None where it lists no flags (not x86)."""
    flags = cpu_flags(root)
    if flags is None:
        return None
    return tuple(name for name, flag in _CPU_FEATURES.items() if flag in flags)


def memory(root: Path) -> Memory:
    """Read proc/meminfo, cut to the cgroup's limit, and the size of dev/shm."""
    lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    total, available = (1024 * int(sizes[n].split()[0]) for n in ("MemTotal", "MemAvailable"))
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


def driver_version(root: Path) -> str | None:
    """Read the version of the loaded NVIDIA kernel driver from proc/driver/nvidia/version."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Fri ..."; the open module
    # words the middle otherwise, so the version is the first word that looks like one.
    words = text.partition("\n")[0].split()
    return next((w for w in words if w[0].isdigit() and "." in w), "unknown")


def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution, module in _GPU_DISTRIBUTIONS.items():
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if util.find_spec(module) is not None:
            found[distribution] = version
    return found
