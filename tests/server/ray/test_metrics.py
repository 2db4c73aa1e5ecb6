"""The gauges that a process hands to Ray."""

import pytest

pytest.importorskip("ray")
from fovea_server.observability.histogram import Family
from fovea_server.ray import metrics

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
