"""The gauges that a process hands to Ray, and the counters of several replicas, added."""

import pytest

pytest.importorskip("ray")
from fovea_server.metrics.metrics import add_batches, batch_family
from fovea_server.observability.histogram import Family, gauge
from fovea_server.ray import metrics
from fovea_server.ray.metrics import add_documents

pytestmark = pytest.mark.cluster


class Gauge:
    """A double for Ray's gauge, which only Ray's agent can read; Ray adds tags to those given."""

    made: "dict[str, Gauge]"

    def __init__(self, name: str, text: str, keys: tuple[str, ...]) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.made[name] = self

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[tuple(tags.values())] = value
        tags["deployment"] = "m"


def test_a_version_that_is_gone_counts_0(monkeypatch):
    """And counts on where it was when it comes back."""
    counts = {"1": 7.0}

    def families() -> list[Family]:
        family = Family("nv_inference_count", "counter", "")
        for version, count in counts.items():
            family.add({"model": "m", "version": version}, count)
        return [family]

    monkeypatch.setattr(metrics, "Gauge", Gauge)
    Gauge.made = {}
    told = metrics.Gauges()

    def values() -> dict[tuple[str, ...], float]:
        told.update(families())
        return Gauge.made["nv_inference_count"].values

    assert values() == {("m", "1"): 7}
    counts.update({"1": 8.0, "2": 1.0})
    assert values() == {("m", "1"): 8, ("m", "2"): 1}
    del counts["1"]
    assert values() == {("m", "1"): 0, ("m", "2"): 1}
    counts["1"] = 8.0
    assert values() == {("m", "1"): 8, ("m", "2"): 1}


def test_former_names_are_exported_too(monkeypatch):
    monkeypatch.setattr(metrics, "Gauge", Gauge)
    Gauge.made = {}
    metrics.Gauges().update([batches := batch_family(), gauge("fovea_ready", "", 1)])
    assert Gauge.made.keys() == {"fovea_ready"}
    add_batches(batches, {"model": "m"}, {2: 3})
    metrics.Gauges().update([batches])
    for name in ("fovea_batch_size", "fovea_batch_rows"):
        assert Gauge.made[f"{name}_count"].values == {("m",): 3}


def version(number: str, count: int, latest: int, batches: dict[int, int]) -> dict[str, object]:
    return {
        "version": number,
        "last_inference": latest,
        "inference_stats": {"success": {"count": count, "ns": 10 * count}},
        "batch_stats": [{"batch_size": b, "count": n} for b, n in batches.items()],
    }


def test_numbers_are_added_and_names_stay():
    one = {"name": "m", "versions": [version("1", 2, 50, {1: 2})], "durations": {"+Inf": 2}}
    other = {
        "name": "m",
        "versions": [version("1", 3, 40, {1: 1, 4: 2}), version("2", 1, 60, {})],
        "durations": {"0.1": 1, "+Inf": 4},
    }
    assert add_documents([one, other]) == {
        "name": "m",
        "versions": [version("1", 5, 50, {1: 3, 4: 2}), version("2", 1, 60, {})],
        "durations": {"+Inf": 6, "0.1": 1},
    }
