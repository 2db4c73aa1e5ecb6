"""The rules of `promtool check metrics`, as far as Triton's own names keep them.

Source: model/textparse and util/promlint of prometheus/client_golang.
"""

import re

import pytest

from fovea_server.metrics import machine
from fovea_server.metrics.machine import MachineMetrics
from fovea_server.metrics.metrics import (
    add_batches,
    batch_family,
    cache_families,
    model_families,
    process_families,
)
from fovea_server.observability.histogram import Durations, Family, gauge, label_name, render
from fovea_server.observability.model_statistics import Stages, StageTimes, stage_family
from fovea_server.scheduling.cache import ResponseCache

ABBREVIATIONS = set(
    ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"]
)
PREFIXES = [
    "pico",
    "nano",
    "micro",
    "milli",
    "centi",
    "deci",
    "deca",
    "hecto",
    "kilo",
    "kibi",
    "mega",
    "mibi",
    "giga",
    "gibi",
    "tera",
]
BASES = [
    "amperes",
    "bytes",
    "celsius",
    "grams",
    "joules",
    "kelvin",
    "meters",
    "metres",
    "seconds",
    "volts",
]
DERIVED = {prefix + base for prefix in PREFIXES for base in BASES} | {"minutes", "hours", "days"}
LINE = re.compile(
    r'([a-zA-Z_][a-zA-Z0-9_]*)(?:\{((?:[a-z_][a-z0-9_]*="(?:[^"\\]|\\.)*",?)+)\})? (\S+)'
)


@pytest.fixture
def families(monkeypatch) -> list[Family]:
    """All that there are, with stages and a GPU that have something to tell."""
    gpu = dict.fromkeys(machine._GPU_METRICS, 5.0) | {"nv_gpu_utilization": 0.5}
    monkeypatch.setattr(machine, "read_gpus", lambda: {"GPU-1": gpu})
    stages, family = Stages(), stage_family()
    for ns in (100_000, 4_000_000, 4_000_000, 9_000_000_000):
        stages.observe(StageTimes(ns, ns, ns, ns, ns))
    stages.add_to(family, {"model": "m", "version": "1"})
    batches = batch_family()
    add_batches(batches, {"model": "m", "version": "1"}, {1: 5, 3: 2, 500: 1})
    filled = {family.name: family, batches.name: batches}
    models = [filled.pop(one.name, one) for one in model_families([])]
    durations = Durations({"m"})
    for seconds in (0.001, 40.0):
        durations.observe("m", 200, seconds)
    own = [durations.family(), *process_families()]
    return [*models, *own, *cache_families(ResponseCache(10)), *MachineMetrics(0).families()]


def test_every_family_has_one_help_and_one_type(families):
    text = render(families)
    for kind in ("HELP", "TYPE"):
        told = re.findall(rf"^# {kind} (\S+) (.+)$", text, re.M)
        assert len(told) == len(families) == len({name for name, _ in told})


def test_every_sample_is_readable_and_told_once(families):
    seen = set()
    for line in render(families).splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        float(value)
        assert (name, labels) not in seen
        seen.add((name, labels))
    assert seen


def test_names_are_in_snake_case_without_types(families):
    for family in families:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert not set(family.name.split("_")) & {"counter", "gauge", "histogram", "summary"}


def test_only_histograms_have_bounds(families):
    for family in families:
        for suffix, labels, _ in family.samples:
            assert ("le" in labels) == (suffix == "_bucket")
            assert bool(suffix) == (family.kind == "histogram")


def test_what_is_not_a_counter_is_not_called_one(families):
    for family in families:
        assert family.kind == "counter" or not family.name.endswith("_total")


def test_fovea_s_own_names_keep_all_rules(families):
    own = [family for family in families if not family.name.startswith("nv_")]
    assert own
    for family in own:
        parts = set(family.name.split("_"))
        assert not parts & ABBREVIATIONS
        assert not parts & DERIVED
        assert family.kind != "counter" or family.name.endswith("_total")
        assert not family.name.endswith(("_bucket", "_count", "_sum"))


def test_a_histogram_adds_up(families):
    family = next(one for one in families if one.name == "fovea_stage_duration_seconds")
    decode = [one for one in family.samples if one[1]["stage"] == "decode"]
    buckets = [value for suffix, _, value in decode if suffix == "_bucket"]
    assert buckets == sorted(buckets)
    bounds = {labels["le"]: value for suffix, labels, value in decode if suffix == "_bucket"}
    assert (bounds["0.0005"], bounds["0.0025"], bounds["0.005"], bounds["+Inf"]) == (1, 1, 3, 4)
    totals = {suffix: value for suffix, _, value in decode if suffix != "_bucket"}
    assert totals["_count"] == 4
    assert totals["_sum"] == pytest.approx(9.0081)


def test_batches_are_counted_by_their_rows(families):
    text = render(families)
    for bound, count in {"1.0": 5, "2.0": 5, "4.0": 7, "128.0": 7, "+Inf": 8}.items():
        assert f'fovea_batch_rows_bucket{{le="{bound}",model="m",version="1"}} {count}\n' in text
    assert 'fovea_batch_rows_sum{model="m",version="1"} 511\n' in text


def test_gpus_are_told_by_their_uuid(families):
    text = render(families)
    assert 'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5' in text
    assert 'nv_energy_consumption{gpu_uuid="GPU-1"} 0.0' in text


def test_a_gpu_that_does_not_say_is_left_out(monkeypatch):
    silent = {"nv_gpu_memory_total_bytes": 5}
    monkeypatch.setattr(machine, "read_gpus", lambda: {"GPU-2": silent})
    text = render(MachineMetrics(0).families())
    assert 'nv_gpu_memory_total_bytes{gpu_uuid="GPU-2"} 5' in text
    assert text.count("GPU-2") == 1


def test_the_machine_is_looked_at_no_more_often_than_asked(monkeypatch):
    looks = []
    monkeypatch.setattr(machine, "read_gpus", lambda: looks.append(0) or {})
    here = MachineMetrics(3600)
    for _ in range(5):
        here.families()
    assert len(looks) == 2


def test_labels_hold_any_text():
    family = Family("f", "gauge", "told")
    family.add({"model": 'a"b\\c\nd', "zz": "", "aa": "x"}, 1)
    assert render([family, gauge("g", "more", 2.5)]) == (
        "# HELP f told\n# TYPE f gauge\n"
        'f{aa="x",model="a\\"b\\\\c\\nd",zz=""} 1\n'
        "# HELP g more\n# TYPE g gauge\ng 2.5\n"
    )
    assert label_name("my-team/ü") == "my_team__"
