"""The manifest in docs/deploy.md: it fits the image, and its probes fit the server."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from tests.docker.dockerfile import Instruction, all_of, read_dockerfile
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_server.settings import Settings

Document = dict[str, Any]


@pytest.fixture(scope="module")
def manifests(root: Path) -> dict[str, Document]:
    """Kind -> document."""
    [text] = re.findall(r"^```yaml\n(.*?)^```", (root / "docs/deploy.md").read_text(), re.M | re.S)
    return {document["kind"]: document for document in YAML(typ="safe").load_all(text)}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Document]) -> Document:
    found: Document = manifests["Deployment"]["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: Document) -> Document:
    [found] = pod["containers"]
    return found


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/cpu.Dockerfile")


@pytest.fixture(scope="module")
def service(root: Path) -> Document:
    """The CPU's service in docker-compose.yml."""
    found: Document = YAML(typ="safe").load(root / "docker-compose.yml")["services"]["cpu"]
    return found


def test_it_may_do_no_more_than_the_compose_file_lets_it(
    pod: Document, container: Document, service: Document, dockerfile: list[Instruction]
) -> None:
    user, group = all_of(dockerfile, "USER")[-1].text.split(":")
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert (str(security["runAsUser"]), str(security["runAsGroup"])) == (user, group)
    assert str(security["fsGroup"]) == group
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] is service["read_only"] is True
    assert own["capabilities"]["drop"] == service["cap_drop"]
    assert own["allowPrivilegeEscalation"] is False
    assert container["image"] == service["image"]


def test_every_port_of_the_image_is_reachable(
    manifests: dict[str, Document], container: Document, dockerfile: list[Instruction]
) -> None:
    [exposed] = all_of(dockerfile, "EXPOSE")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [str(port) for port in ports.values()] == exposed.arguments
    offered = manifests["Service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in offered} == ports
    metadata = manifests["Deployment"]["spec"]["template"]["metadata"]
    assert manifests["Service"]["spec"]["selector"] == metadata["labels"]
    assert metadata["annotations"]["prometheus.io/port"] == str(ports["metrics"])


def test_it_mounts_what_the_image_writes_to(
    pod: Document, container: Document, service: Document, dockerfile: list[Instruction]
) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts) == {all_of(dockerfile, "VOLUME")[-1].text, *service["tmpfs"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert all("emptyDir" in volumes[mounts[path]] for path in service["tmpfs"])


def test_it_has_the_time_to_finish_what_it_accepted(pod: Document, container: Document) -> None:
    pause, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pause == "sleep"
    needed = int(seconds) + Settings.model_fields["exit_timeout_secs"].default
    assert pod["terminationGracePeriodSeconds"] > needed


def test_no_service_sets_its_settings(pod: Document) -> None:
    assert pod["enableServiceLinks"] is False


def test_a_busy_server_is_not_restarted(container: Document, dockerfile: list[Instruction]) -> None:
    [check] = all_of(dockerfile, "HEALTHCHECK")
    assert f"--timeout={container['livenessProbe']['timeoutSeconds']}s" in check.text


def test_its_probes_are_answered(container: Document, root: Path, tmp_path: Path) -> None:
    demo = root / "server/fovea_server/demo/digits.onnx"
    build(BuildPlan(demo, "digits", tmp_path / "repository"))
    server = start_server(tmp_path / "repository", tmp_path)
    for probe, path in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/v2/health/{path}", "port": "http"}
        assert httpx.get(server.url + asked["path"]).status_code == 200
    assert server.stop() == 0
