"""What `make test-all` reads from reports of pytest, and the table that it prints."""

import subprocess
import sys

from tools.test_all import counts, table

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("absent")
@pytest.fixture
def broken(): raise RuntimeError
def test_has_an_error(broken): pass
"""


def test_counts_are_those_of_a_real_report(tmp_path):
    (tmp_path / "test_four.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--junitxml=report.xml",
        "-p",
        "no:cacheprovider",
    ]
    subprocess.run(command, cwd=tmp_path, check=False, capture_output=True)
    found = counts(tmp_path / "report.xml")
    assert found == {"passed": 1, "failed": 2, "skipped": 1}
    assert counts(tmp_path / "absent.xml") == {}


def test_the_table_sums_the_lanes():
    passed = {"status": 0, "seconds": 27}
    failed = {"status": 2, "seconds": 645, "passed": 5000, "failed": 1, "skipped": 3}
    rows = [line.split() for line in table({"lint": passed, "test": failed}).splitlines()]
    assert rows == [
        ["lane", "result", "passed", "failed", "skipped", "duration"],
        ["lint", "passed", "0:27"],
        ["test", "failed", "5000", "1", "3", "10:45"],
        ["all", "failed", "5000", "1", "3", "11:12"],
    ]
