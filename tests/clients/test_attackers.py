"""benchmarks/attackers.py, a short one: the long one runs every attack for ten minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "attackers.py"


def test_bystanders_are_answered_on_every_port_while_others_attack(tmp_path):
    report = tmp_path / "report.json"
    given = ["--minutes", "0.15", "--only", "half", "--json", report]
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, given)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert [row["attack"] for row in rows] == ["none", "HTTP: half heads", "metrics: half heads"]
    for row in rows:
        assert not row["faults"]
        assert all(row["asked"].values())
