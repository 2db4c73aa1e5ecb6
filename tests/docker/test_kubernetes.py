"""docker/kubernetes: each variant is one that Kubernetes takes, whose parts fit one another."""

import copy
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from tests.conftest import DEMO, ROOT, SHARED
from tests.docker.dockerfile import Instruction, all_of, read_dockerfile
from tests.docker.pod import Pod, running
from tests.stores import REMOTE, Bucket
from tests.system import program

from fovea_server.settings import Settings

pytestmark = pytest.mark.real


# The manifests of docker/kubernetes and docker/kserve: rendered, and checked as by a cluster.


KUBERNETES = ROOT / "docker" / "kubernetes"
KSERVE = ROOT / "docker" / "kserve"
# Each manifest is checked with its oldest supported release, and with the newest.
RELEASES = ("1.29", "1.37")
_SCHEMAS = Path(sys.prefix) / "kubernetes"
_OLDEST_KUBECTL = 21

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    with path.open() as stream:
        return list(YAML(typ="safe").load_all(stream))


def render(
    folder: Path, overlay: str, components: Sequence[str] = (), **fields: object
) -> dict[str, Document]:
    """Kind -> document, as `kubectl apply -k` of a kustomization with these fields would send them.

    `folder` is where it lies, and is empty.
    """
    kubectl = program("kubectl", package="kubernetes-client")
    version = subprocess.check_output([kubectl, "version", "--client", "-o", "json"])
    minor = int(re.match(r"\d+", json.loads(version)["clientVersion"]["minor"])[0])
    if minor < _OLDEST_KUBECTL:
        pytest.skip(f"kubectl 1.{minor} knows no components: take 1.{_OLDEST_KUBECTL} or newer")
    here = os.path.relpath(KUBERNETES.resolve(), folder.resolve())
    kustomization = {
        "resources": [f"{here}/{overlay}"],
        "components": [f"{here}/{name}" for name in components],
        **fields,
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    # A warning is a field that a newer kustomize does not take.
    assert (done.returncode, done.stderr) == (0, "")
    found = list(YAML(typ="safe").load_all(done.stdout))
    for each in found:
        if each["kind"] == "Secret":
            each["kind"] += f" {each['metadata']['name']}"
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def check_builtin(document: Document, release: str) -> None:
    """Refuse what Kubernetes would, and unknown keys; ValidationError says what."""
    if not _SCHEMAS.is_dir():
        pytest.skip("there are no schemas of Kubernetes: make .venv/kubernetes")
    if str(_SCHEMAS) not in sys.path:
        sys.path.append(str(_SCHEMAS))
    import kubernetes_validate

    checked = kubernetes_validate.validate(document, release, strict=True)
    assert checked == release


def check_kserve(document: Document) -> None:
    """Refuse what KServe's CRD does, and unknown keys."""
    validator(document["kind"]).validate(document)


@cache
def validator(kind: str) -> Draft202012Validator:
    """Return the schema of a KServe kind."""
    path = SHARED / "data" / "kserve" / f"{kind.lower()}s.crd.yaml.gz"
    if not path.is_file():
        pytest.skip(f"the CRDs of KServe are absent: {path} is not there")
    # A parser in Python takes seconds for two megabytes.
    with gzip.open(path) as stream:
        crd = yaml.load(stream, yaml.CSafeLoader)
    assert crd["spec"]["names"]["kind"] == kind
    [version] = crd["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    properties = schema["properties"]
    properties["apiVersion"]["const"] = f"{crd['spec']['group']}/{version['name']}"
    properties["kind"]["const"] = kind
    return Draft202012Validator(schema)


def _closed(schema: Any) -> Any:
    """A structural schema that refuses keys it does not name, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if named and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


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
    page = (root / "docs" / "how-to" / "kubernetes.md").read_text()
    [text] = re.findall(r"^```yaml\n(.*?kind: Kustomization\n.*?)^```", page, re.M | re.S)
    own = YAML(typ="safe").load(text)
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


# The containers of docker/kubernetes and docker/kserve run, get ready, answer and end with 0.


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def serves(pod: Pod, model: str, key: str | None = None) -> None:
    """Its probes succeed, an image is answered, and SIGTERM ends it with 0."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    for name in PROBES:
        if name in pod.container:
            pod.wait_for(name)
    assert httpx.get(f"{pod.url}/v2/models/{model}/ready").status_code == 200
    image = (DEMO / "scene-1.jpg").read_bytes()
    predict = f"{pod.url}/v1/models/{model}/predict"
    answer = httpx.post(predict, content=image, headers=headers)
    assert answer.status_code == 200, answer.text
    assert httpx.post(predict, content=image).status_code == (401 if key else 200)
    assert pod.stop() == 0
    log = pod.log.read_text()
    assert "has no effect" not in log
    assert "WARNING" not in log


def container_of(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    [container] = spec.get("template", {"spec": spec})["spec"]["containers"]
    # There are no load balancers to wait for.
    container["env"] = [each for each in container["env"] if each["name"] != "FOVEA_DRAIN_SECS"]
    return container


@pytest.fixture
def key(fovea, tmp_path) -> str:
    """A key of the file that the Secret has."""
    (tmp_path / "keys").mkdir()
    code, shown, told = fovea("key", "add", "owner", "--keys", tmp_path / "keys" / "keys.json")
    assert code == 0, told
    return str(shown.strip())


@pytest.fixture
def mounts(tmp_path) -> dict[str, Path]:
    """Return the directory that stands for a pod's /tmp."""
    (tmp_path / "tmp").mkdir()
    return {"/tmp": tmp_path / "tmp"}


def test_the_deployment_with_a_volume(demo_repository, tmp_path, mounts, key):
    (tmp_path / "rendered").mkdir()
    container = container_of(render(tmp_path / "rendered", "cpu")["Deployment"])
    placed = mounts | {"/repository": demo_repository, "/keys": tmp_path / "keys"}
    with running(container, placed, tmp_path) as pod:
        serves(pod, "digits", key)


def test_the_deployment_with_a_store(demo_repository, tmp_path, mounts, key):
    for name in ("rendered", "repository"):
        (tmp_path / name).mkdir()
    container = container_of(render(tmp_path / "rendered", "cpu", ["store"])["Deployment"])
    [secret] = [each["secretRef"]["name"] for each in container["envFrom"]]
    assert secret == "fovea-store"
    bucket = Bucket()
    try:
        bucket.upload(demo_repository / "digits" / "1", "digits/1")
        given = bucket.variables | {
            "FOVEA_MODEL_REPOSITORY": bucket.address,
            "PYTHONPATH": str(REMOTE),
        }
        placed = mounts | {"/repository": tmp_path / "repository", "/keys": tmp_path / "keys"}
        with running(container, placed, tmp_path, given) as pod:
            serves(pod, "digits", key)
    finally:
        bucket.stop()


@pytest.mark.parametrize("layout", ["model", "repository"])
def test_the_runtime_of_kserve_with_what_storage_uri_names(
    demo_repository, tmp_path, mounts, layout
):
    """KServe copies what is below the address to /mnt/models."""
    [runtime] = documents(KSERVE / "runtime.yaml")
    [service] = documents(KSERVE / "service.yaml")
    name = service["metadata"]["name"]
    container = container_of(runtime)
    container["args"] = [each.replace("{{.Name}}", name) for each in container["args"]]
    single = layout == "model"
    source = demo_repository / "digits" if single else demo_repository
    shutil.copytree(source, tmp_path / "models")
    with running(container, mounts | {"/mnt/models": tmp_path / "models"}, tmp_path) as pod:
        serves(pod, name if single else "digits")


def test_kserve_takes_its_manifests_and_they_fit_each_other():
    [runtime] = documents(KSERVE / "runtime.yaml")
    [service] = documents(KSERVE / "service.yaml")
    for document in (runtime, service):
        check_kserve(document)
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert model["modelFormat"]["name"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    [container] = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"
    settings = {each["name"]: each["value"] for each in container["env"]}
    stopping = sum(float(settings[f"FOVEA_{name}_SECS"]) for name in ("DRAIN", "EXIT_TIMEOUT"))
    assert service["spec"]["predictor"]["terminationGracePeriodSeconds"] > stopping
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in runtime["spec"]["volumes"]
    }


def test_a_key_that_kserve_does_not_know_is_found():
    [runtime] = documents(KSERVE / "runtime.yaml")
    runtime["spec"]["containers"][0]["readynessProbe"] = {}
    [error] = validator(runtime["kind"]).iter_errors(runtime)
    assert "readynessProbe" in error.message
