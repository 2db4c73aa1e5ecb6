"""Short runs of the long programs benchmarks/attackers.py and benchmarks/soak.py."""

import json
import subprocess
import sys

import pytest
from tests.conftest import ROOT


def run(program: str, folder, *arguments: object):
    """Run a program; return its report."""
    report = folder / "report.json"
    command = [sys.executable, ROOT / "benchmarks" / program, *arguments, "--json", report]
    done = subprocess.run(
        [str(each) for each in command], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())


@pytest.mark.slow
def test_bystanders_are_answered_on_every_port_during_attacks(tmp_path):
    rows = run("attackers.py", tmp_path, "--minutes", 0.15, "--only", "half")["rows"]
    assert [row["attack"] for row in rows] == ["none", "HTTP: half heads", "metrics: half heads"]
    for row in rows:
        assert not row["faults"]
        assert all(row["asked"].values())


@pytest.mark.real
def test_mixed_load_leaves_no_error_and_nothing_behind(triton_models, tmp_path):
    report = run("soak.py", tmp_path, "--requests", 2000, "--models", triton_models)
    assert sum(report["requests"].values()) >= 2000
    assert set(report["requests"]) == {
        *("http", "grpc", "in a stream", "in a sequence", "cancelled", "hung up", "loads"),
        *("loads of an ensemble's part", "unloads", "of a model that goes", "file overrides"),
        *("failing loads", "regions"),
    }
    assert report["faults"] == []
