"""docker-compose.yml: valid, and as closed as it is meant to be."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.docker.dockerfile import all_of, read_dockerfile

from fovea_server.settings import Settings

pytestmark = pytest.mark.real

# Where it is published: on this machine, until the operator says otherwise.
BIND = "${FOVEA_BIND:-127.0.0.1}"


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(root / "docker-compose.yml")
    return document


@pytest.mark.smoke
def test_it_follows_the_compose_specification(root: Path) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [*checker, str(root / "docker-compose.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.smoke
def test_docker_itself_accepts_it(root: Path) -> None:
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    version = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if version.returncode != 0:
        pytest.skip("docker has no compose plugin")
    command = ["docker", "compose", "--profile", "cpu", "--profile", "gpu", "config", "--quiet"]
    checked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_service_can_do_no_more_than_it_must(
    name: str, compose: dict[str, Any], root: Path
) -> None:
    service = compose["services"][name]
    assert service["profiles"] == [name]
    assert service["image"] == f"fovea-serve:{name}"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert "/tmp" in service["tmpfs"]
    assert service["build"]["dockerfile"] == f"docker/{name}.Dockerfile"
    assert (root / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_every_port_of_the_image_is_published(
    name: str, compose: dict[str, Any], root: Path
) -> None:
    [exposed] = all_of(read_dockerfile(root / f"docker/{name}.Dockerfile"), "EXPOSE")
    published = [f"{BIND}:{port}:{port}" for port in exposed.arguments]
    assert compose["services"][name]["ports"] == published


def test_only_the_gpus_service_reserves_one(compose: dict[str, Any]) -> None:
    reserved = compose["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert "deploy" not in compose["services"]["cpu"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_repository_and_the_keys_are_the_volumes_and_are_declared(
    name: str, compose: dict[str, Any]
) -> None:
    service = compose["services"][name]
    mounts = dict(mount.split(":") for mount in service["volumes"])
    caches = {"cache": "/tmp/.cache/fovea"} if name == "gpu" else {}
    assert mounts == {"repository": "/repository", "keys": "/keys", **caches}
    assert set(mounts) <= set(compose["volumes"])
    # Without a value it is the one of the shell, if there is one.
    assert service["environment"] == {
        "FOVEA_KEYS_FILE": "/keys/keys.json",
        "FOVEA_LOG_FORMAT": None,
        "FOVEA_ALLOW_URL": None,
        "FOVEA_URL_ALLOW_PRIVATE": None,
    }


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_monitoring_is_pinned_closed_and_seen_from_this_machine_only(
    name: str, compose: dict[str, Any], root: Path
) -> None:
    service = compose["services"][name]
    assert service["profiles"] == ["monitoring"]
    assert re.fullmatch(r"\w+/\w+:v?\d+\.\d+\.\d+", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    for mount in service["volumes"]:
        source, _, _ = mount.partition(":")
        if source.startswith("."):
            assert mount.endswith(":ro")
            assert (root / source).is_dir()
        else:
            assert source in compose["volumes"]


def test_no_log_fills_the_disk(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}


def test_grafana_keeps_the_plugins_of_its_image(compose: dict[str, Any]) -> None:
    """Version 13.2 would replace Prometheus' one, and have none where the root is read-only."""
    grafana = compose["services"]["grafana"]
    assert grafana["read_only"] is True
    assert grafana["environment"]["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_it_has_the_time_to_finish_what_it_accepted(name: str, compose: dict[str, Any]) -> None:
    # Then the last spans go to the collector, which may take five seconds.
    needed = Settings.model_fields["exit_timeout_secs"].default + 5
    assert int(compose["services"][name]["stop_grace_period"].removesuffix("s")) > needed


def test_monitoring_needs_no_fovea_of_this_file(compose: dict[str, Any]) -> None:
    assert compose["services"]["grafana"]["depends_on"] == ["prometheus"]
    assert "depends_on" not in compose["services"]["prometheus"]


def test_it_needs_no_environment(root: Path) -> None:
    text = (root / "docker-compose.yml").read_text().replace("${FOVEA_EXTRAS:-}", "")
    lines = text.replace(BIND, "").splitlines()
    assert "$" not in "".join(line for line in lines if not line.lstrip().startswith("#"))
