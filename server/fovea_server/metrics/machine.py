"""Metrics of the machine or container: CPU, memory and GPUs.

Source: docs/user_guide/metrics.md of Triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import ModuleType

import psutil

from fovea_server.observability.histogram import Family, gauge

_ENERGY = "nv_energy_consumption"
# Name of each metric -> its help text, the name of the NVML function, and the conversion of the
# function's result.
_GPU_METRICS: dict[str, tuple[str, str, Callable[..., float]]] = {
    _ENERGY: (
        "GPU energy consumption in joules since the Triton Server started",
        "nvmlDeviceGetTotalEnergyConsumption",
        lambda millijoules: millijoules / 1e3,
    ),
    "nv_gpu_utilization": (
        "GPU utilization rate [0.0 - 1.0)",
        "nvmlDeviceGetUtilizationRates",
        lambda percent: percent.gpu / 100,
    ),
    "nv_gpu_memory_total_bytes": (
        "GPU total memory, in bytes",
        "nvmlDeviceGetMemoryInfo",
        lambda memory: memory.total,
    ),
    "nv_gpu_memory_used_bytes": (
        "GPU used memory, in bytes",
        "nvmlDeviceGetMemoryInfo",
        lambda memory: memory.used,
    ),
    "nv_gpu_power_usage": (
        "GPU power usage in watts",
        "nvmlDeviceGetPowerUsage",
        lambda milliwatts: milliwatts / 1e3,
    ),
    "nv_gpu_power_limit": (
        "GPU power management limit in watts",
        "nvmlDeviceGetPowerManagementLimit",
        lambda milliwatts: milliwatts / 1e3,
    ),
}


class MachineMetrics:
    """Reads the metrics of the machine on request, but at most once in `interval_s` seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._seen_at: float | None = None
        self._seen: list[Family] = []
        self._gpus_at_start = read_gpus()
        # `cpu_percent` covers the time since its previous call, so a first call begins the period.
        psutil.cpu_percent()

    def families(self) -> list[Family]:
        """Return the metric families of CPU and memory, and of GPUs if there are any."""
        now = time.monotonic()
        if self._seen_at is None or now - self._seen_at >= self._interval_s:
            self._seen = _host() + self._gpus()
            self._seen_at = now
        return self._seen

    def _gpus(self) -> list[Family]:
        gpus = read_gpus()
        families = {
            name: Family(name, "counter" if name == _ENERGY else "gauge", text)
            for name, (text, _, _) in _GPU_METRICS.items()
        }
        for uuid, readings in gpus.items():
            at_start = self._gpus_at_start.get(uuid, {})
            for name, value in readings.items():
                if name != _ENERGY:
                    families[name].add({"gpu_uuid": uuid}, value)
                elif name in at_start:
                    families[name].add({"gpu_uuid": uuid}, value - at_start[name])
        return list(families.values()) if gpus else []


def _host() -> list[Family]:
    memory = psutil.virtual_memory()
    return [
        gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100),
        gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.used),
        # Triton's dashboards expect metrics of a pool of pinned memory. Fovea has no pool, because
        # each engine pins its own memory, so the metrics are 0.
        gauge(
            "nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0
        ),
        gauge(
            "nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0
        ),
    ]


def read_gpus() -> dict[str, dict[str, float]]:
    """Read the metrics of all GPUs with NVML, by UUID of the GPU.

    The energy is counted from the start of the driver. The result is empty if there is no driver,
    or if nvidia-ml-py is not installed. CUDA (`fovea_engines.device`) cannot replace NVML, because
    it reports neither load nor power.
    """
    nvml = _nvml()
    gpus: dict[str, dict[str, float]] = {}
    if nvml is None:
        return gpus
    count = 0
    with suppress(nvml.NVMLError):
        count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        readings = gpus[nvml.nvmlDeviceGetUUID(gpu)] = {}
        for name, (_, function, converted) in _GPU_METRICS.items():
            # NVML does not report every value for a MIG slice or a virtual GPU.
            with suppress(nvml.NVMLError):
                readings[name] = converted(getattr(nvml, function)(gpu))
    return gpus


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
