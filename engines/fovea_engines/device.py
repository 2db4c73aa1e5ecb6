"""Identifies the processor and the GPU of this machine."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

# From CUdevice_attribute of cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """A model of GPU.

    Attributes:
        name: from the driver, e.g. "NVIDIA L4".
        capability: its compute capability, e.g. "89".
    """

    name: str
    capability: str

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability})"


def gpu_here() -> Gpu | None:
    """Return the first GPU, the only one that is used; None without a GPU or a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = (ctypes.c_int() for _ in range(3))
    name = ctypes.create_string_buffer(_LONGEST_NAME)
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, _LONGEST_NAME, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    return None if failed else Gpu(name.value.decode(), f"{major.value}{minor.value}")


def processor_name() -> str:
    """Return the processor's model name, e.g. "Intel(R) Xeon(R) Processor @ 2.60GHz"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
