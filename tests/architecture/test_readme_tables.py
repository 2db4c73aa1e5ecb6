"""The README's tables are those that benchmarks/tables.py makes of the committed figures."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_shows_the_committed_figures():
    command = [sys.executable, ROOT / "benchmarks" / "tables.py"]
    tables = subprocess.check_output(command, text=True).strip().split("\n\n")
    readme = (ROOT / "README.md").read_text()
    assert len(tables) == 3
    for table in tables:
        assert f"\n\n{table}\n\n" in readme, f"the README lacks this table:\n{table}"


def test_a_ratio_is_the_median_of_the_rounds():
    """Reckoned by hand from the committed figures: no formula of tables.py has a part in it."""
    readme = (ROOT / "README.md").read_text()
    XXX
