"""benchmarks/soak.py, a short one: the long one is a million requests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


def test_mixed_load_leaves_no_error_and_nothing_behind(triton_models, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(SOAK), "--requests", "2000", "--models", str(triton_models)]
    done = subprocess.run(
        [*command, "--json", str(report)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert sum(told["requests"].values()) >= 2000
    assert set(told["requests"]) == {
        *("http", "grpc", "in a stream", "in a sequence", "cancelled", "hung up", "loads"),
        *("loads of an ensemble's part", "unloads", "of a model that goes", "file overrides"),
        *("failing loads", "regions"),
    }
    assert told["faults"] == []
