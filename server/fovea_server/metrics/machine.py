"""Metrics of the machine: its processor, memory and GPUs.

Source: docs/user_guide/metrics.md of Triton.
"""

from __future__ import annotations

import time

import psutil

from fovea_engines.backends.cuda.readings import GpuReading, read_gpus
from fovea_server.statistics.family import Family, gauge

_GPU_GAUGES = {
    "nv_gpu_utilization": ("utilization", "GPU utilization rate [0.0 - 1.0)"),
    "nv_gpu_memory_total_bytes": ("memory_total", "GPU total memory, in bytes"),
    "nv_gpu_memory_used_bytes": ("memory_used", "GPU used memory, in bytes"),
    "nv_gpu_power_usage": ("power_w", "GPU power usage in watts"),
    "nv_gpu_power_limit": ("power_limit_w", "GPU power management limit in watts"),
}


class MachineMetrics:
    """Reads the machine on request, at most once in each interval.

    Args:
        interval_s: readings are reused for this many seconds.
    """

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
