"""Fixtures shared by all tests, and what is said at the end of a run."""

from pathlib import Path

import pytest
from tests.system import missing_packages

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real models and images that are not part of the project."""
    if not (SHARED / "models").is_dir():
        pytest.skip(f"real models and images are absent: {SHARED} is not there")
    return SHARED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the system packages that a full run takes."""
    skipped = terminalreporter.stats.get("skipped", [])
    packages = missing_packages(report.longrepr[2] for report in skipped)
    if packages:
        terminalreporter.section("skipped for want of system packages")
        terminalreporter.line(f"For a full run: apt-get install {' '.join(packages)}")
