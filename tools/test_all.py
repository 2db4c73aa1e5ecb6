"""Run all lanes of tests, one after the other, and keep what came of it.

    make test-all
    python -m tools.test_all test test-smoke    only these

Each lane is a target of the Makefile. The table at the end has its counts and its duration, and
tests/last_full_run.json keeps it, with the date, the commit and the processor. A run of some lanes
replaces theirs alone.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fovea_engines.device import processor_name, usable_cores

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "last_full_run.json"
LANES = (
    *("lint", "test", "test-smoke", "test-real", "test-browser", "test-cluster"),
    *("test-circle", "test-fiftyone", "test-images", "test-bare"),
)
COUNTS = ("passed", "failed", "skipped")


def run(lane: str, folder: Path) -> dict[str, Any]:
    """Make a target; return its exit status, duration in seconds, and counts of tests."""
    report = folder / f"{lane}.xml"
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} --junitxml={report}"
    began = time.monotonic()
    done = subprocess.run(
        ["make", lane], cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": options}, check=False
    )
    seconds = round(time.monotonic() - began)
    return {**_origin(), "status": done.returncode, "seconds": seconds, **counts(report)}


def counts(report: Path) -> dict[str, int]:
    """Count the tests of a JUnit report; a run that wrote none, as lint, has no tests."""
    if not report.exists():
        return {}
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    found = dict.fromkeys(COUNTS, 0)
    for suite in suites:
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        found["failed"] += failed
        found["skipped"] += skipped
        found["passed"] += int(suite.get("tests", 0)) - failed - skipped
    return found


def table(lanes: dict[str, dict[str, Any]]) -> str:
    """Lay out the lanes, a line each, and their sums."""
    rows = [("lane", "result", *COUNTS, "duration")]
    rows += [_row(lane, found) for lane, found in lanes.items()]
    keys = (*COUNTS, "seconds", "status")
    rows.append(_row("all", {k: sum(found.get(k, 0) for found in lanes.values()) for k in keys}))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, result, *numbers in rows:
        right = (f"{n:>{width}}" for n, width in zip(numbers, widths[2:], strict=True))
        lines.append("  ".join((f"{name:<{widths[0]}}", f"{result:<{widths[1]}}", *right)))
    return "\n".join(lines)


def _row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    minutes, seconds = divmod(found["seconds"], 60)
    result = "failed" if found["status"] else "passed"
    return (name, result, *(str(found.get(key, "")) for key in COUNTS), f"{minutes}:{seconds:02}")


def _origin() -> dict[str, str]:
    commit = subprocess.check_output(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, text=True
    )
    machine = f"{processor_name()}, {usable_cores()} cores"
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "commit": commit.strip(), "machine": machine}


def main(chosen: list[str]) -> int:
    """Run these lanes, or all; return 1 when one fails."""
    if unknown := set(chosen) - {*LANES}:
        print(f"no such lane: {', '.join(sorted(unknown))}; there are {', '.join(LANES)}")
        return 2
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for lane in chosen or LANES:
            kept[lane] = found[lane] = run(lane, Path(folder))
            ordered = {name: kept[name] for name in LANES if name in kept}
            KEPT.write_text(json.dumps(ordered, indent=1) + "\n")
    print(f"\n{table(found)}\n\n{KEPT.relative_to(ROOT)} keeps this.")
    return int(any(result["status"] for result in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
