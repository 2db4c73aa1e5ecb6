"""The text of /metrics, from families with samples; and what NVML reports, by a stand-in for it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fovea_engines.device import gpu_here
from fovea_server.metrics import machine
from fovea_server.metrics.machine import MachineMetrics, read_gpus
from fovea_server.metrics.metrics import add_batches, batch_family
from fovea_server.observability import histogram
from fovea_server.observability.histogram import Durations, Family, gauge, label_name, render
from fovea_server.observability.model_statistics import Stages, StageTimes, stage_family


def parse(*families: Family) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(families))
        for sample in family.samples
    }


def test_the_stages_of_images_are_a_histogram():
    stages, family = Stages(), stage_family()
    for ns in (100_000, 4_000_000, 4_000_000, 9_000_000_000):
        stages.observe(StageTimes(ns, ns, ns, ns, ns))
    stages.add_to(family, {"model": "m", "version": "1"})
    found, name = parse(family), "fovea_stage_duration_seconds"
    bounds = {
        key[1]: n for key, n in found.items() if key[0] == f"{name}_bucket" and "decode" in key
    }
    assert list(bounds.values()) == sorted(bounds.values())
    assert (bounds["0.0005"], bounds["0.0025"], bounds["0.005"], bounds["+Inf"]) == (1, 1, 3, 4)
    assert found[f"{name}_count", "m", "decode", "1"] == 4
    assert found[f"{name}_sum", "m", "decode", "1"] == pytest.approx(9.0081)


def test_batches_are_counted_by_their_rows():
    family = batch_family()
    add_batches(family, {"model": "m", "version": "1"}, {1: 5, 3: 2, 500: 1})
    found = parse(family)
    for bound, count in {"1.0": 5, "2.0": 5, "4.0": 7, "128.0": 7, "+Inf": 8}.items():
        assert found["fovea_batch_size_bucket", bound, "m", "1"] == count
    assert found["fovea_batch_size_sum", "m", "1"] == 511


def test_labels_hold_any_text():
    family = Family("f", "gauge", "told")
    value = 'a"b\\c\nd'
    family.add({"model": value, "zz": "", "aa": "x"}, 1)
    assert parse(family, gauge("g", "more", 2.5)) == {("f", "x", value, ""): 1, ("g",): 2.5}
    assert label_name("my-team/ü") == "my_team__"


class Everything:
    def __contains__(self, name: object) -> bool:
        return True


def test_models_that_come_and_go_leave_no_endless_histograms(monkeypatch):
    monkeypatch.setattr(histogram, "_MAX_HISTOGRAMS", 10)
    measured = Durations(Everything())
    for number in range(100):
        measured.observe(f"model-{number}", 200, 0.1)
    models = {key[1] for key in parse(measured.family()) if key[0].endswith("_count")}
    assert models == {f"model-{number}" for number in range(90, 100)}


def test_refusals_are_not_among_the_durations_of_a_model():
    measured = Durations({"m"})
    for status in (200, 429, 503, "OK", "UNAVAILABLE"):
        measured.observe("m", status, 0.1)
    assert measured.of("m")["+Inf"] == 2


def test_success_begins_with_zero_for_models_that_are_served():
    measured = Durations({"m", "idle"})
    measured.observe("m", 200, 0.1)
    found = parse(measured.family(["m", "idle"]))
    counted = {key[1:]: n for key, n in found.items() if key[0].endswith("_count")}
    assert counted == {("m", "200"): 1, ("m", "OK"): 0, ("idle", "200"): 0, ("idle", "OK"): 0}


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
    found = parse(*MachineMetrics(0).families())
    assert found["nv_gpu_utilization", "GPU-0"] == 0.4
    assert found["nv_gpu_memory_total_bytes", "GPU-1"] == 100
    assert ("nv_gpu_utilization", "GPU-1") not in found


def test_without_the_library_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus() == {}


@pytest.mark.skipif(gpu_here() is not None, reason="this machine has a GPU")
def test_without_a_driver_there_are_none():
    assert read_gpus() == {}


def test_the_machine_is_looked_at_no_more_often_than_asked(monkeypatch):
    looks = []
    monkeypatch.setattr(machine, "read_gpus", lambda: looks.append(0) or {})
    here = MachineMetrics(3600)
    for _ in range(5):
        here.families()
    assert len(looks) == 2
