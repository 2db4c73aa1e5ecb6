"""Programs and libraries that tests need and pip does not bring."""

import re
import shutil
from collections.abc import Iterable
from typing import NoReturn

import pytest


def program(*names: str, package: str) -> str:
    """The path of the first of these programs that is there; without one the test skips."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        skip_for_want_of(package, f"there is no {names[0]}")
    return found


def skip_for_want_of(package: str, problem: str) -> NoReturn:
    """Skip the test; the summary at the end of the run names the package."""
    pytest.skip(f"{problem}: install the Debian package {package}")


def missing_packages(reasons: Iterable[str]) -> list[str]:
    """The packages that the reasons of skipped tests name."""
    found = (re.search(r"install the Debian package (\S+)", reason) for reason in reasons)
    return sorted({match[1] for match in found if match})
