"""docker/kubernetes: each variant is one that Kubernetes takes, whose parts fit one another."""

import copy
import re
import textwrap
from itertools import product
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML
from tests.docker.dockerfile import Instruction, all_of, read_dockerfile
from tests.docker.manifests import (
    KUBERNETES,
    RELEASES,
    Document,
    check_builtin,
    documents,
    render,
)

from fovea_server.settings import Settings

pytestmark = pytest.mark.real

COMPONENTS = {"none": (), "store": ("store",), "all": ("store", "monitoring", "autoscaling")}
# Custom resources, whose schema is not Kubernetes' own.
CUSTOM = {"ServiceMonitor"}
NAME = {"app.kubernetes.io/name": "fovea"}

Manifests = dict[str, Document]


@pytest.fixture(
    scope="module",
    params=product(("cpu", "gpu"), COMPONENTS),
    ids="-".join,
)
def variant(request, tmp_path_factory) -> tuple[str, str, Manifests]:
    """Name of the overlay, of its components, and what they make."""
    overlay, added = request.param
    manifests = render(tmp_path_factory.mktemp("rendered"), overlay, COMPONENTS[added])
    return overlay, added, manifests


@pytest.fixture(scope="module")
def manifests(variant: tuple[str, str, Manifests]) -> Manifests:
    return variant[2]


@pytest.fixture(scope="module")
def pod(manifests: Manifests) -> Document:
    found: Document = manifests["Deployment"]["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: Document) -> Document:
    [found] = pod["containers"]
    return found


@pytest.fixture(scope="module")
def dockerfile(variant: tuple[str, str, Manifests], root: Path) -> list[Instruction]:
    return read_dockerfile(root / f"docker/{variant[0]}.Dockerfile")


@pytest.fixture(scope="module")
def service(variant: tuple[str, str, Manifests], root: Path) -> Document:
    """The same in docker-compose.yml."""
    found: Document = YAML(typ="safe").load(root / "docker-compose.yml")["services"][variant[0]]
    return found


@pytest.mark.smoke
def test_kubernetes_takes_it(manifests: Manifests) -> None:
    for kind, document in manifests.items():
        for release in RELEASES if kind not in CUSTOM else ():
            check_builtin(document, release)


def test_a_key_that_is_wrong_is_found(manifests: Manifests) -> None:
    wrong = copy.deepcopy(manifests["Deployment"])
    [container] = wrong["spec"]["template"]["spec"]["containers"]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(jsonschema.ValidationError, match="readynessProbe"):
        check_builtin(wrong, RELEASES[-1])


def test_selectors_select_the_pods_and_nothing_else(manifests: Manifests, pod: Document) -> None:
    """An empty selector would be every pod of the namespace."""
    deployment = manifests["Deployment"]["spec"]
    assert deployment["template"]["metadata"]["labels"] == NAME
    assert deployment["selector"]["matchLabels"] == NAME
    assert manifests["Service"]["spec"]["selector"] == NAME
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == NAME
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == NAME
    [spread] = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == NAME


def test_it_may_do_no_more_than_the_compose_file_lets_it(
    pod: Document, container: Document, service: Document, dockerfile: list[Instruction]
) -> None:
    user, group = all_of(dockerfile, "USER")[-1].text.split(":")
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert (str(security["runAsUser"]), str(security["runAsGroup"])) == (user, group)
    assert str(security["fsGroup"]) == group
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] is service["read_only"] is True
    assert own["capabilities"]["drop"] == service["cap_drop"]
    assert own["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["image"] == service["image"]


def test_every_port_of_the_image_is_reachable(
    manifests: Manifests, container: Document, dockerfile: list[Instruction]
) -> None:
    [exposed] = all_of(dockerfile, "EXPOSE")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [str(port) for port in ports.values()] == exposed.arguments
    offered = manifests["Service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in offered} == ports
    # Istio and Knative read the protocol from either.
    for port in offered:
        assert port["name"].partition("-")[0] == port["appProtocol"]
    rules = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(ports)


def test_it_mounts_what_the_image_writes_to(
    variant: tuple[str, str, Manifests],
    pod: Document,
    container: Document,
    service: Document,
    dockerfile: list[Instruction],
) -> None:
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    written = {all_of(dockerfile, "VOLUME")[-1].text, *service["tmpfs"]}
    assert set(mounts) == written | {"/keys"}
    assert mounts["/keys"]["readOnly"] is True
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    assert all("emptyDir" in volumes[mounts[path]["name"]] for path in service["tmpfs"])
    claim, from_store = variant[2].get("PersistentVolumeClaim"), variant[1] != "none"
    repository = volumes["repository"]
    if from_store:
        assert claim is None
        assert set(repository) == {"name", "emptyDir"}
        assert mounts["/repository"]["readOnly"] is False
    else:
        claimed = repository["persistentVolumeClaim"]
        assert claimed == {"claimName": claim["metadata"]["name"], "readOnly": True}
        assert mounts["/repository"]["readOnly"] is True
    # Without a store it connects to nothing, and with one to that and to DNS.
    egress = variant[2]["NetworkPolicy"]["spec"].get("egress", [])
    assert [p["port"] for rule in egress for p in rule["ports"]] == [53, 53, 443] * from_store


def test_it_has_the_time_to_finish_what_it_accepted(pod: Document, container: Document) -> None:
    pause, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pause == "sleep"
    given = {each["name"]: each["value"] for each in container["env"]}
    settings = {
        name: float(given[f"FOVEA_{name.upper()}"]) for name in ("drain_secs", "exit_timeout_secs")
    }
    assert settings["drain_secs"] > 0
    needed = int(seconds) + sum(settings.values())
    assert pod["terminationGracePeriodSeconds"] > needed


def test_every_setting_and_flag_is_the_servers(container: Document) -> None:
    names = {each["name"].removeprefix("FOVEA_").lower() for each in container["env"]}
    names |= {
        flag.partition("=")[0].removeprefix("--").replace("-", "_") for flag in container["args"]
    }
    assert names <= set(Settings.model_fields)


def test_a_busy_server_is_not_restarted(container: Document, dockerfile: list[Instruction]) -> None:
    [check] = all_of(dockerfile, "HEALTHCHECK")
    assert f"--timeout={container['livenessProbe']['timeoutSeconds']}s" in check.text
    # While models load it is live and not ready: only a port that does not open is a fault.
    for probe, path in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/v2/health/{path}", "port": "http"}


def test_only_the_gpus_pod_takes_a_gpu(variant: tuple[str, str, Manifests], container) -> None:
    gpu = variant[0] == "gpu"
    assert container["resources"]["limits"].get("nvidia.com/gpu") == (1 if gpu else None)
    rolling = variant[2]["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxSurge"] == (0 if gpu else 1), "a GPU is free only when a pod has gone"


def test_what_is_added_names_what_is_there(variant: tuple[str, str, Manifests]) -> None:
    _, added, manifests = variant
    deployment = manifests["Deployment"]
    assert ("replicas" in deployment["spec"]) is (added != "all")
    if added != "all":
        return
    autoscaler = manifests["HorizontalPodAutoscaler"]["spec"]
    about = {"apiVersion": deployment["apiVersion"], "kind": "Deployment", "name": "fovea"}
    assert autoscaler["scaleTargetRef"] == about
    [metric] = autoscaler["metrics"]
    [rule] = YAML(typ="safe").load(KUBERNETES / "autoscaling/adapter.yaml")["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    monitor = manifests["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == manifests["Service"]["metadata"]["labels"]
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in manifests["Service"]["spec"]["ports"]}


def test_engines_are_built_where_the_servers_read_them(pod: Document, container: Document) -> None:
    [builder] = documents(KUBERNETES / "builder.yaml")
    for release in RELEASES:
        check_builtin(builder, release)
    security = dict(pod["securityContext"])
    assert security.pop("fsGroupChangePolicy") == "OnRootMismatch"
    assert builder["spec"]["securityContext"] == security
    [own] = builder["spec"]["containers"]
    assert own["securityContext"] == container["securityContext"]
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert [*(mount["mountPath"] for mount in own["volumeMounts"]), "/keys"] == mounted


def test_the_kustomization_of_the_docs_is_one(root: Path, tmp_path: Path) -> None:
    page = (root / "docs" / "kubernetes.md").read_text()
    [text] = re.findall(r"\n\n((?:       .*\n)*       kind: Kustomization\n(?:       .*\n)*)", page)
    own = YAML(typ="safe").load(textwrap.dedent(text))
    [resource] = own["resources"]
    assert resource == "../CLONE/docker/kubernetes/cpu"
    for name in ("keys.json", "prometheus.key"):
        (tmp_path / name).write_text("{}")
    kept = ("namespace", "images", "secretGenerator", "generatorOptions")
    manifests = render(tmp_path, "cpu", ["monitoring"], **{key: own[key] for key in kept})
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    mounted = next(each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each)
    [endpoint] = manifests["ServiceMonitor"]["spec"]["endpoints"]
    asked = endpoint["authorization"]["credentials"]
    assert list(manifests[f"Secret {mounted}"]["data"]) == ["keys.json"]
    assert list(manifests[f"Secret {asked['name']}"]["data"]) == [asked["key"]]
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "REGISTRY/fovea-serve:0.1.0"
    assert {each["metadata"]["namespace"] for each in manifests.values()} == {"vision"}
