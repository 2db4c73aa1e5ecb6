"""docs/reference/supported-models.md lists the families that are decoded, and no other."""

import re
from pathlib import Path

import pytest

from fovea_engines.heads.registry import FAMILIES

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def test_families():
    page = (ROOT / "docs" / "reference" / "supported-models.md").read_text()
    table = page.split("## Families")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    listed = re.findall(r"`([a-z0-9-]+)`", " ".join(cells))
    assert sorted(listed) == sorted(FAMILIES)
    assert f"{len(FAMILIES)} families" in (ROOT / "README.md").read_text()
