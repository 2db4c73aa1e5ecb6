"""What this machine has for inference. Looks, and loads nothing heavy."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from fovea_engines.backends.backend import BackendInfo
from fovea_engines.backends.cores import usable_cores
from fovea_engines.backends.registry import available_backends
from fovea_engines.device import cpu_flags, processor_name

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
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor.

    Attributes:
        name: model name.
        cores: of the machine.
        usable: cores that affinity and cgroup quota leave to this process.
        features: instruction sets that matter to inference, out of AVX2, AVX512, AVX-VNNI,
            AVX512-VNNI and AMX-INT8; None where they cannot be read.
    """

    name: str
    cores: int
    usable: int
    features: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, bytes.

    Attributes:
        total: of the machine, or of the container where that has a limit.
        available: of it, without swapping.
        shared: size of /dev/shm; 0 where it is not mounted.
    """

    total: int
    available: int
    shared: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU.

    Attributes:
        name: model name.
        memory_mib: MiB; None where the driver does not say.
    """

    name: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything `fovea doctor` looks at.

    Attributes:
        driver: version of the NVIDIA driver; None without one.
        gpus: those this process can see.
        gpu_packages: installed distribution -> version, of those that GPU backends need.
    """

    cpu: Cpu
    memory: Memory
    backends: tuple[BackendInfo, ...]
    driver: str | None
    gpus: tuple[Gpu, ...]
    gpu_packages: dict[str, str]


def look(root: Path = Path("/")) -> Machine:
    """Look at this machine.

    Args:
        root: where /proc, /sys and /dev hang.
    """
    return Machine(
        cpu=Cpu(processor_name(), os.cpu_count() or 1, usable_cores(), cpu_features(root)),
        memory=memory(root),
        backends=available_backends(),
        driver=driver_version(root),
        gpus=_gpus(),
        gpu_packages=_installed(_GPU_DISTRIBUTIONS),
    )


def cpu_features(root: Path) -> tuple[str, ...] | None:
    """Instruction sets named in proc/cpuinfo; None where it lists no flags (not x86)."""
    flags = cpu_flags(root)
    if flags is None:
        return None
    return tuple(name for name, flag in _CPU_FEATURES.items() if flag in flags)


def memory(root: Path) -> Memory:
    """Main memory from proc/meminfo, cut to the cgroup's limit, and the size of dev/shm."""
    total, available = 0, 0
    for line in (root / "proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            total = int(value.split()[0]) * 1024
        elif name == "MemAvailable":
            available = int(value.split()[0]) * 1024
    # A container sees the host in /proc, and its own limit at the root of /sys/fs/cgroup.
    cgroup = root / "sys/fs/cgroup"
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = int((cgroup / limit_file).read_text())
            used = int((cgroup / used_file).read_text())
        except (OSError, ValueError):  # ValueError: the limit is "max"
            continue
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, available, _shared_memory(root / "dev/shm"))


def driver_version(root: Path) -> str | None:
    """Version of the loaded NVIDIA kernel driver, from proc/driver/nvidia/version."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Fri ..."; the open module
    # words the middle otherwise, so the version is the first word that looks like one.
    words = text.partition("\n")[0].split()
    return next((w for w in words if w[0].isdigit() and "." in w), "unknown")


def parse_gpus(csv: str) -> tuple[Gpu, ...]:
    """GPUs out of nvidia-smi's lines "name, memory in MiB"."""
    rows = (line.rpartition(",") for line in csv.splitlines() if "," in line)
    return tuple(
        Gpu(name.strip(), int(memory) if memory.strip().isdigit() else None)
        for name, _, memory in rows
    )


def _gpus() -> tuple[Gpu, ...]:
    try:
        asked = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(asked.stdout)


def _installed(distributions: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution, module in distributions.items():
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if util.find_spec(module) is not None:
            found[distribution] = version
    return found


def _shared_memory(folder: Path) -> int:
    try:
        state = os.statvfs(folder)
    except OSError:
        return 0
    return state.f_frsize * state.f_blocks
