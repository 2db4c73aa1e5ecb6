"""Detects the processor, the GPUs, and the memory and cores that this process may use."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

WeightBits = Literal[7, 8]

# Linux's names of the CPU instruction sets that add INT8 products in 32 bits (first tuple) or
# multiply bfloat16 numbers (second tuple). A CPU needs only one instruction set of a tuple.
_SUMS_IN_32_BITS = ("avx_vnni", "avx512_vnni", "amx_int8")
BFLOAT16_SETS = ("avx512_bf16", "amx_bf16")
# Values of CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR in cuda.h.
_MAJOR, _MINOR = 75, 76
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model, e.g. "NVIDIA L4" with compute capability "89"."""

    name: str
    capability: str

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability})"


def gpu_here() -> Gpu | None:
    """Return the first visible GPU, or None if there is no GPU or no driver.

    Fovea uses only this GPU.
    """
    return next((gpu for gpu, _ in visible_gpus()), None)


def visible_gpus() -> list[tuple[Gpu, int]]:
    """Return the GPUs that this process may use, in the driver's order, with their memory in bytes.

    The result is empty without a GPU or driver. CUDA_VISIBLE_DEVICES and containers can hide GPUs.
    """
    # This function uses the CUDA driver and not NVML. Only the driver applies CUDA_VISIBLE_DEVICES
    # and lists the partitions of a GPU (MIG); NVML lists every GPU of the machine. These driver
    # calls need no Python package and no CUDA context. The server's metrics use NVML, because only
    # NVML reports load, power and energy.
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    gpus = [_gpu(driver, index) for index in range(count.value)]
    return [gpu for gpu in gpus if gpu is not None]


def _gpu(driver: ctypes.CDLL, index: int) -> tuple[Gpu, int] | None:
    device, major, minor = (ctypes.c_int() for _ in range(3))
    name, memory = ctypes.create_string_buffer(_LONGEST_NAME), ctypes.c_size_t()
    failed = (
        driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetName(name, _LONGEST_NAME, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    )
    if failed:
        return None
    return Gpu(name.value.decode(), f"{major.value}{minor.value}"), memory.value


def processor_name() -> str:
    """Return the name of the processor, e.g. "Intel(R) Xeon(R) Processor @ 2.60GHz"."""
    names = _cpuinfo("model name", Path("/"))
    return next(iter(names), platform.processor() or platform.machine())


def cpu_flags(root: Path = Path("/")) -> set[str] | None:
    """Return Linux's names of the CPU's instruction sets, or None if proc/cpuinfo has no flags."""
    flags = _cpuinfo("flags", root)
    return set(flags[0].split()) if flags else None


def sets_for(precision: str, root: Path = Path("/")) -> tuple[str, ...]:
    """Return Linux's names of this CPU's instruction sets for the arithmetic of a precision.

    The result is empty for precisions other than "int8" and "bf16", which every CPU computes
    equally.
    """
    wanted = {"bf16": BFLOAT16_SETS, "int8": _SUMS_IN_32_BITS}.get(precision, ())
    here = cpu_flags(root) or ()
    return tuple(name for name in wanted if name in here)


def int8_saturates(root: Path = Path("/")) -> bool:
    """Return whether OpenVINO and ONNX Runtime add INT8 products in 16 bits (vpmaddubsw).

    Both runtimes do so on x86-64 processors without VNNI and AMX. There 255 * 127 + 255 * 127 is
    cut to 32,767. The result is also True for an x86-64 processor whose instruction sets are
    unknown.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return not sets_for("int8", root)


def _cpuinfo(key: str, root: Path) -> list[str]:
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that the affinity mask and the CPU quota allow, at least 1.

    `os.cpu_count()` ignores the quota. A container with a quota of 2 cores on a machine with 64
    cores would start 64 threads, and the kernel would throttle them most of the time.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [_quota(folder) for folder in _own_cgroups(root, "cpu")]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota)]))


def _own_cgroups(root: Path, controller: str) -> list[Path]:
    """Return this process's cgroup directories and their parents, for cgroup v2 and v1.

    `controller` names the controller of cgroup v1. A returned directory may not exist: in a
    container, /proc often has the paths of the host, while the container's own limits are in the
    top directory.
    """
    v2 = root / "sys/fs/cgroup"
    folders = [v2, v2 / controller]
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = v2 / controller if controllers else v2
            folder = top / path.lstrip("/")
            folders += [folder, *(up for up in folder.parents if up.is_relative_to(top))]
    return folders


def _quota(folder: Path) -> float | None:
    """Return the CPU quota of one cgroup in cores, or None if it has no limit."""
    v2, v1 = folder / "cpu.max", folder / "cpu.cfs_quota_us"
    if v2.is_file():
        quota, period = v2.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    if v1.is_file():
        limit = int(v1.read_text())
        return limit / int((folder / "cpu.cfs_period_us").read_text()) if limit > 0 else None
    return None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine or its container, in bytes.

    Attributes:
        total: size of the main memory.
        available: free main memory.
        shared: size of /dev/shm; 0 if it does not exist.
    """

    total: int
    available: int
    shared: int


def memory(root: Path) -> Memory:
    """Return the machine's memory, reduced to the cgroups' limits, and the size of /dev/shm."""
    # Imported here, because an import at the top of the module would slow down every command.
    import psutil

    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    # In a container, /proc has the memory of the host, and /sys/fs/cgroup has the container's
    # limit.
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for folder, (limit_file, used_file) in product(_own_cgroups(root, "memory"), names):
        try:
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
        except (OSError, ValueError):  # ValueError: the limit is "max"
            continue
        total, available = min(total, limit), min(available, max(0, limit - used))
    try:
        shm = os.statvfs(root / "dev/shm")
    except OSError:
        return Memory(total, available, 0)
    return Memory(total, available, shm.f_frsize * shm.f_blocks)
