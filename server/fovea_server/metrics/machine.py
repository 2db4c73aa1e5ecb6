"""Metrics of the machine: its processor, memory and GPUs.

Source: docs/user_guide/metrics.md of Triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TypeVar

import psutil

from fovea_server.statistics.family import Family, gauge

T = TypeVar("T")

_GPU_GAUGES = {
    "nv_gpu_utilization": ("utilization", "GPU utilization rate [0.0 - 1.0)"),
    "nv_gpu_memory_total_bytes": ("memory_total", "GPU total memory, in bytes"),
    "nv_gpu_memory_used_bytes": ("memory_used", "GPU used memory, in bytes"),
    "nv_gpu_power_usage": ("power_w", "GPU power usage in watts"),
    "nv_gpu_power_limit": ("power_limit_w", "GPU power management limit in watts"),
}


class MachineMetrics:
    """Reads the machine on request, at most once in `interval_s` seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._seen_at: float | None = None
        self._seen: list[Family] = []
        self._energy_at_start = {gpu.uuid: gpu.energy_j for gpu in read_gpus()}
        # The rate covers the time between two calls; this is the first.
        psutil.cpu_percent()

    def families(self) -> list[Family]:
        """Build the families of the processor, of memory, and of GPUs if there are any."""
        now = time.monotonic()
        if self._seen_at is None or now - self._seen_at >= self._interval_s:
            self._seen = _host() + self._gpus(read_gpus())
            self._seen_at = now
        return self._seen

    def _gpus(self, gpus: list[GpuReading]) -> list[Family]:
        if not gpus:
            return []
        energy = Family(
            "nv_energy_consumption",
            "counter",
            "GPU energy consumption in joules since the Triton Server started",
        )
        for gpu in gpus:
            start = self._energy_at_start.get(gpu.uuid)
            if gpu.energy_j is not None and start is not None:
                energy.add({"gpu_uuid": gpu.uuid}, gpu.energy_j - start)
        families = [energy]
        for name, (reading, text) in _GPU_GAUGES.items():
            family = Family(name, "gauge", text)
            for gpu in gpus:
                value = getattr(gpu, reading)
                if value is not None:
                    family.add({"gpu_uuid": gpu.uuid}, value)
            families.append(family)
        return families


def _host() -> list[Family]:
    memory = psutil.virtual_memory()
    return [
        gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100),
        gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.used),
        # Dashboards of Triton expect a pool; here each engine pins its own memory.
        gauge(
            "nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0
        ),
        gauge(
            "nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0
        ),
    ]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The present state of a GPU; None where its driver reports no such value.

    Attributes:
        uuid: as in nvidia-smi.
        utilization: share of the time in which a kernel ran, 0 to 1.
        memory_total: bytes.
        memory_used: bytes, of all processes.
        power_w: watts.
        power_limit_w: watts.
        energy_j: joules since the driver was loaded.
    """

    uuid: str
    utilization: float | None
    memory_total: int | None
    memory_used: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None


def read_gpus() -> list[GpuReading]:
    """Read all GPUs of this machine with NVML; none without a driver or nvidia-ml-py.

    CUDA says which GPUs an engine may use (`fovea_engines.device`), but not their load and power.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    count = _value(nvml, nvml.nvmlDeviceGetCount) or 0
    return [_reading(nvml, index) for index in range(count)]


@cache
def _nvml() -> ModuleType | None:
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _reading(nvml: ModuleType, index: int) -> GpuReading:
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    rates = _value(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu)
    memory = _value(nvml, nvml.nvmlDeviceGetMemoryInfo, gpu)
    power_mw = _value(nvml, nvml.nvmlDeviceGetPowerUsage, gpu)
    limit_mw = _value(nvml, nvml.nvmlDeviceGetPowerManagementLimit, gpu)
    energy_mj = _value(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, gpu)
    return GpuReading(
        uuid=nvml.nvmlDeviceGetUUID(gpu),
        utilization=None if rates is None else rates.gpu / 100,
        memory_total=None if memory is None else memory.total,
        memory_used=None if memory is None else memory.used,
        power_w=None if power_mw is None else power_mw / 1e3,
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        energy_j=None if energy_mj is None else energy_mj / 1e3,
    )


def _value(nvml: ModuleType, query: Callable[..., T], *arguments: object) -> T | None:
    """Return the driver's value; None where this GPU has none (a MIG slice or a virtual GPU)."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None
