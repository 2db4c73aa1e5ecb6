"""What NVML says of GPUs, by a stand-in for it; and nothing where there is none."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fovea_engines.device import gpu_here
from fovea_server.metrics import machine
from fovea_server.metrics.machine import read_gpus


class FakeNvml(ModuleType):
    """Two GPUs; the second says no more than its name and memory, as a part of one does."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, gpu):  # noqa: N802
        return f"GPU-{gpu}"

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        return SimpleNamespace(total=100, used=25)

    def __getattr__(self, name):
        known = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40, memory=7),
            "nvmlDeviceGetPowerUsage": 70_500,
            "nvmlDeviceGetPowerManagementLimit": 300_000,
            "nvmlDeviceGetTotalEnergyConsumption": 12_000,
        }
        if name not in known:
            raise AttributeError(name)

        def say(gpu):
            if gpu == 1:
                raise self.NVMLError("Not Supported")
            return known[name]

        return say


@pytest.fixture(autouse=True)
def forgotten():
    """NVML is asked for anew."""
    machine._nvml.cache_clear()
    yield
    machine._nvml.cache_clear()


def test_units_are_those_of_the_project(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    memory = {"nv_gpu_memory_total_bytes": 100, "nv_gpu_memory_used_bytes": 25}
    others = {
        "nv_gpu_utilization": 0.4,
        "nv_gpu_power_usage": 70.5,
        "nv_gpu_power_limit": 300.0,
        "nv_energy_consumption": 12.0,
    }
    assert read_gpus() == {"GPU-0": memory | others, "GPU-1": memory}


def test_without_the_library_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus() == {}


@pytest.mark.skipif(gpu_here() is not None, reason="this machine has a GPU")
def test_without_a_driver_there_are_none():
    assert read_gpus() == {}
