"""The containers of docker/kubernetes and docker/kserve run, get ready, answer and end with 0."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import DEMO
from tests.docker.manifests import KSERVE, check_kserve, documents, render, validator
from tests.docker.pod import Pod, running
from tests.stores import REMOTE, Bucket

pytestmark = pytest.mark.real

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
    # The time for load balancers, of which there are none here.
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
    """Of a pod's /tmp."""
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
