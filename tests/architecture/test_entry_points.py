"""The tables of `pyproject.toml`, and what the core asks for."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


def test_the_installed_tables_are_those_of_the_source_tree():
    points = metadata.distribution("fovea-serve").entry_points
    installed = {
        group: {each.name: each.value for each in points.select(group=group)} for group in TABLES
    }
    assert installed == TABLES, "pip install --no-deps -e ."


def test_each_ability_is_asked_for_by_its_name():
    asked: set[str] = set()
    for folder in ("engines/fovea_engines", "server/fovea_server"):
        for path in (ROOT / folder).rglob("*.py"):
            asked.update(re.findall(r'Group\.ABILITIES,\s*"([\w-]+)"', path.read_text()))
    assert asked == TABLES["fovea.abilities"].keys()
    compared = (ROOT / "tools" / "abilities.py").read_text()
    given = {value.partition(":")[0] for value in TABLES["fovea.abilities"].values()}
    assert {module for module in given if module not in compared} == set()


def test_contributing_says_how_each_annex_is_found():
    rows = re.findall(r"^\| \[`\w+/(\w+)`\].*\| ([^|]+) \|$", CONTRIBUTING, re.MULTILINE)
    found: dict[str, set[str]] = {package: set() for package, _ in rows}
    for table, points in TABLES.items():
        for value in points.values():
            if (package := value.split(".")[0].split(":")[0]) in found:
                found[package].add(table)
    assert {package: set(re.findall(r"`([\w.]+)`", said)) for package, said in rows} == found
