"""locks/: what is installed in production has one version, and the hash of every file of it."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.locks import EXTRAS, FOLDER, GROUPS

PROJECT = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ({"sys_platform": "linux", "platform_machine": "x86_64"}, {"sys_platform": "darwin"})


def pins(file: Path) -> dict[str, tuple[Requirement, list[str]]]:
    """Name -> the pin, and the hashes of its files."""
    found = {}
    for entry in file.read_text().replace("\\\n", "").splitlines():
        pin, *hashes = entry.split(" --hash=")
        requirement = Requirement(pin)
        found[canonicalize_name(requirement.name)] = requirement, [h.strip() for h in hashes]
    return found


def wanted(name: str) -> list[str]:
    if name in GROUPS:
        listed: list[str] = PROJECT["dependency-groups"][name]
        return listed
    extras = PROJECT["project"]["optional-dependencies"]
    more = [line for extra in EXTRAS[name] for line in extras[extra]]
    return [*PROJECT["project"]["dependencies"], *more]


def test_there_is_a_file_for_each_way_to_install():
    assert {file.stem for file in FOLDER.glob("*")} == {*EXTRAS, *GROUPS}
    assert {*PROJECT["dependency-groups"]} == {*GROUPS}


@pytest.mark.parametrize("name", [*EXTRAS, *GROUPS])
def test_every_file_of_what_is_wanted_has_a_hash(name):
    locked = pins(FOLDER / f"{name}.txt")
    for requirement, hashes in locked.values():
        assert re.fullmatch(r"==[\w.+]+", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement
    for line in wanted(name):
        need = Requirement(line)
        pin, _ = locked[canonicalize_name(need.name)]
        [version] = [each.version for each in pin.specifier]
        assert need.specifier.contains(version), f"{pin}: `make locks` writes it anew"
        for python in PYTHONS:
            for platform in PLATFORMS:
                where = {"python_version": python, "python_full_version": f"{python}.1", **platform}
                if need.marker is None or need.marker.evaluate(where):
                    assert pin.marker is None or pin.marker.evaluate(where), (pin, where)


@pytest.mark.parametrize("name", [*EXTRAS, *GROUPS])
def test_versions_are_those_that_the_tests_run_with(name):
    lines = (FOLDER.parent / "constraints.txt").read_text().splitlines()
    tested = {
        canonicalize_name(pin.name): pin.specifier
        for pin in (Requirement(line) for line in lines if line and not line.startswith("#"))
    }
    locked = pins(FOLDER / f"{name}.txt")
    differing = {
        n: str(pin)
        for n, (pin, _) in locked.items()
        if tested.get(n, pin.specifier) != pin.specifier
    }
    assert differing == {}
    if name in EXTRAS:
        here = {n for n, (pin, _) in locked.items() if not pin.marker or pin.marker.evaluate()}
        assert here <= tested.keys()


def test_no_file_names_a_machine():
    for file in FOLDER.glob("*.txt"):
        assert not re.search(r"://|--(index|extra|find|trusted)", file.read_text())


def test_what_it_needs_on_two_systems_of_different_files_is_alike():
    """An image of TensorRT installs two of them at once."""
    both = [pins(FOLDER / f"{name}.txt") for name in ("pycuda", "tensorrt", "rtx")]
    for name, (pin, hashes) in both[0].items():
        for other in both[1:]:
            if name in other:
                assert (pin.specifier, hashes) == (other[name][0].specifier, other[name][1])
