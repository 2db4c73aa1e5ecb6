"""Reads the present state of this machine's GPUs from their driver (NVML)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuReading:
    """State of one GPU; fields are None if the driver does not report them.

    Attributes:
        uuid: as in nvidia-smi.
        utilization: share of the time in which a kernel ran, 0 to 1.
        memory_total: bytes.
        memory_used: bytes, of all processes.
        power_w: present power, watts.
        power_limit_w: power limit, watts.
        energy_j: energy since its driver was loaded, joules.
    """

    uuid: str
    utilization: float | None
    memory_total: int | None
    memory_used: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None


def read_gpus() -> list[GpuReading]:
    """Return all GPUs of this machine; none without a driver or nvidia-ml-py."""
    nvml = _nvml()
    if nvml is None:
        return []
    count = _said(nvml, nvml.nvmlDeviceGetCount) or 0
    return [_reading(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


@cache
def _nvml() -> Any:
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _reading(nvml: Any, gpu: Any) -> GpuReading:
    rates = _said(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu)
    memory = _said(nvml, nvml.nvmlDeviceGetMemoryInfo, gpu)
    power_mw = _said(nvml, nvml.nvmlDeviceGetPowerUsage, gpu)
    limit_mw = _said(nvml, nvml.nvmlDeviceGetPowerManagementLimit, gpu)
    energy_mj = _said(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, gpu)
    return GpuReading(
        uuid=nvml.nvmlDeviceGetUUID(gpu),
        utilization=None if rates is None else rates.gpu / 100,
        memory_total=None if memory is None else memory.total,
        memory_used=None if memory is None else memory.used,
        power_w=None if power_mw is None else power_mw / 1e3,
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        energy_j=None if energy_mj is None else energy_mj / 1e3,
    )


def _said(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """Return the driver's answer; None where this GPU has none (a MIG slice or a virtual GPU)."""
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None
