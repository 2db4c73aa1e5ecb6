"""docker-compose.yml: valid, and as closed as it is meant to be."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(root / "docker-compose.yml")
    return document


def test_it_follows_the_compose_specification(root: Path) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [*checker, str(root / "docker-compose.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_docker_itself_accepts_it(root: Path) -> None:
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    version = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if version.returncode != 0:
        pytest.skip("docker has no compose plugin")
    command = ["docker", "compose", "--profile", "cpu", "config", "--quiet"]
    checked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_service_can_do_no_more_than_it_must(compose: dict[str, Any], root: Path) -> None:
    service = compose["services"]["cpu"]
    assert service["profiles"] == ["cpu"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert "/tmp" in service["tmpfs"]
    assert (root / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_repository_is_the_only_volume_and_is_declared(compose: dict[str, Any]) -> None:
    [mount] = compose["services"]["cpu"]["volumes"]
    name, _, target = mount.partition(":")
    assert name in compose["volumes"]
    assert target == "/repository"


def test_it_needs_no_environment(root: Path) -> None:
    assert "$" not in "".join(
        line
        for line in (root / "docker-compose.yml").read_text().splitlines()
        if not line.lstrip().startswith("#")
    )
