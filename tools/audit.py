"""Looks up advisories about the packages of `locks/`, with pip-audit.

    python -m tools.audit [FILE ...]

Exits with 1 where there is one. Where no index of advisories can be reached, it says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.locks import FOLDER

# PyPI's answers are quicker; a mirror of it seldom has them.
_INDEXES = ("pypi", "osv")
_TIMEOUT_S = 600
_SHOWN = 100


def known_to(index: str, lock: Path) -> tuple[list[dict[str, Any]], str]:
    """Ask an index about the packages of a file: those that it knows, or why there are none."""
    command = ["pip-audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    asked = subprocess.run(
        [*command, "--vulnerability-service", index, "--format=json", "--progress-spinner=off"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    try:
        packages = json.loads(asked.stdout)["dependencies"]
    except ValueError:
        said = asked.stderr.strip().splitlines() or ["pip-audit says nothing"]
        return [], f"{index}: {said[-1][:_SHOWN]}"
    # It passes over a package that an index does not answer for, and succeeds.
    known = [package for package in packages if "vulns" in package]
    return known, "" if known else f"{index} answers for none of {len(packages)} packages"


def audit(locks: Sequence[Path]) -> int:
    """Print what is known about the packages of files; 1 if there is an advisory, else 0."""
    tried = {index: known_to(index, locks[0]) for index in _INDEXES}
    index = next((name for name, (known, _) in tried.items() if known), None)
    if index is None:
        reasons = "; ".join(reason for _, reason in tried.values())
        print(f"skipped: no index of advisories answers here ({reasons})")
        return 0
    found = 0
    for lock in locks:
        known, reason = known_to(index, lock)
        print(f"{lock.name}: {reason or f'{len(known)} packages looked up at {index}'}")
        for package in known:
            for each in package["vulns"]:
                found += 1
                mended = ", ".join(each["fix_versions"]) or "no version yet"
                print(f"  {package['name']} {package['version']}: {each['id']}, mended in {mended}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(audit([Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.txt"))))
