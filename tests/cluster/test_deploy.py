"""`fovea ray deploy`: what it says of a cluster that is not there, or too small."""

import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from tests.cluster.conftest import until
from tests.serving import free_ports
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.cluster


def test_no_cluster(demo_repository):
    [port] = free_ports(1)
    command = ["ray", "deploy", "--repository", demo_repository, "--address", f"127.0.0.1:{port}"]
    done = subprocess.run(
        [sys.executable, "-m", "fovea_server.cli.main", *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"at 127.0.0.1:{port}: start one" in done.stderr
    assert "ray start --head" in done.stderr
    assert "Traceback" not in done.stderr


def test_more_than_any_node_has(cluster, demo_repository):
    models = {"digits": {"cpus": 64, "gpus": 1}}
    done = cluster.deploy(repository=str(demo_repository), models=models)
    assert done.returncode == 2
    assert "a replica of digits needs 64 CPU and 1 GPU" in done.stderr
    assert "lower models.digits.cpus or gpus" in done.stderr


def test_another_address_is_taken_over(cluster, demo_repository, monkeypatch):
    # Ray's own way to use HAProxy, which Fovea has no use for.
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    cluster.serve(repository=str(demo_repository))
    [port] = free_ports(1)
    done = cluster.deploy(repository=str(demo_repository), settings={"http_port": port})
    assert done.returncode == 0, done.stderr
    assert f"http://{cluster.host}:{port}" in done.stdout
    assert httpx.get(f"http://{cluster.host}:{port}/v2/health/ready").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{cluster.url}/v2/health/ready")
    assert cluster.deploy(repository=str(demo_repository)).returncode == 0
    assert httpx.get(f"{cluster.url}/v2/health/ready").status_code == 200


def test_a_port_that_is_taken(cluster, demo_repository):
    """The fronts go on with what they serve."""
    cluster.serve(repository=str(demo_repository))
    with socket.socket() as taken:
        taken.bind((cluster.host, 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = cluster.deploy(repository=str(demo_repository), settings={"http_port": port})
    assert done.returncode == 1
    assert f"cannot listen on {cluster.host} port {port}" in done.stderr
    assert httpx.get(f"{cluster.url}/v2/health/ready").status_code == 200


def test_no_such_model(cluster, demo_repository):
    done = cluster.deploy(repository=str(demo_repository), models={"digit": {}})
    assert done.returncode == 2
    assert "models.digit: " in done.stderr
    assert "did you mean digits?" in done.stderr


def test_a_model_that_cannot_be_loaded(cluster, demo_repository, repository):
    (repository / "spare" / "1" / "model.xml").write_bytes(b"no engine")
    done = cluster.deploy(repository=str(repository))
    assert done.returncode == 1
    assert "was changed after the build" in done.stderr, done.stdout + done.stderr
    cluster.serve(repository=str(demo_repository))


def test_a_model_that_cannot_be_woken_is_refused(cluster, repository, scene):
    """Ray tries to start a model that ran before again and again: once mended, it is there."""
    asleep = {"spare": {"min_replicas": 0, "max_replicas": 1, "downscale_delay_s": 1}}
    done = cluster.deploy(repository=str(repository), models=asleep)
    assert done.returncode == 0, done.stdout + done.stderr

    def predict(model: str) -> httpx.Response:
        url = f"{cluster.url}/v1/models/{model}/predict"
        return httpx.post(url, content=scene, timeout=600)

    # A process of Ray has to start for it.
    assert predict("spare").status_code == 200
    # None that starts either: it may have read the engine already.
    until(lambda: not any(cluster.states("spare").values()))
    engine = repository / "spare" / "1" / "model.xml"
    whole = engine.read_bytes()
    engine.write_bytes(b"no engine")

    refused = predict("spare")
    assert refused.status_code == 503
    assert "was changed after the build" in refused.text
    assert httpx.get(f"{cluster.url}/v1/models/spare/ready").status_code == 503
    assert predict("digits").status_code == 200
    engine.write_bytes(whole)
    until(lambda: predict("spare").status_code == 200)
    until(lambda: httpx.get(f"{cluster.url}/v1/models/spare/ready").status_code == 200)


def test_every_node_has_a_front_also_one_that_joins(cluster, demo_repository, scene):
    cluster.serve(repository=str(demo_repository))
    cluster.add_worker()
    added = cluster.workers[-1]

    def answers(host: str) -> bool:
        url = f"http://{host}:{cluster.port}/v1/models/digits/predict"
        try:
            return httpx.post(url, content=scene).status_code == 200
        except httpx.TransportError:
            return False

    for worker in cluster.workers:
        until(lambda host=worker.node_ip_address: answers(host))
    cluster.cluster.remove_node(cluster.workers.pop())
    # None waits for a node that will not come back.
    until(lambda: cluster.states("@front", "fovea-fronts") == {"RUNNING": 3})
    until(lambda: not answers(added.node_ip_address))


def test_replicas_answer_fronts_alone(cluster, demo_repository, scene):
    cluster.serve(repository=str(demo_repository))
    [replica] = cluster.replicas("digits")
    told = ray_get(replica.__ray_call__.remote(_metadata))
    url = f"http://{told['host']}:{told['http']}/v1/models/digits/predict"
    for headers in ({}, {"fovea-token": "guess"}):
        refused = httpx.post(url, content=scene, headers=headers)
        assert refused.status_code == 400
        assert "front server" in refused.text
    with (
        triton.InferenceServerClient(f"{told['host']}:{told['grpc']}") as client,
        pytest.raises(InferenceServerException, match="front server"),
    ):
        client.is_server_live()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{told['http']}/v2/health/live")


def ray_get(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def _metadata(replica: Any) -> dict[str, Any]:
    return replica._replica_impl._replica_metadata


def test_models_of_a_store(cluster, store, repository, demo_repository, scene, tmp_path):
    """A replica pulls its model when it starts; until then there is no more than its card."""
    # Ray counts requests by the name of a model: those to `spare` in other tests could wake it.
    (repository / "spare").rename(repository / "sleeper")
    config = repository / "sleeper" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "spare"', 'name: "sleeper"', 1))
    for name in ("digits", "sleeper"):
        store.upload(repository / name, name)
    asleep = {"sleeper": {"min_replicas": 0, "max_replicas": 1}}
    settings = {"repository_cache": str(tmp_path)}
    done = cluster.deploy(repository=store.address, models=asleep, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr

    def pulled() -> set[str]:
        return {path.name for path in tmp_path.glob("*/models/*/1/model.*")}

    def predict(model: str) -> httpx.Response:
        url = f"{cluster.url}/v1/models/{model}/predict"
        return httpx.post(url, content=scene, timeout=600)

    assert predict("digits").status_code == 200
    listed = httpx.get(f"{cluster.url}/v1/models").json()["models"]
    assert [model["name"] for model in listed] == ["digits", "sleeper"]
    assert pulled() == {"model.onnx"}
    assert predict("sleeper").status_code == 200
    assert pulled() == {"model.onnx", "model.xml", "model.bin"}
    cluster.serve(repository=str(demo_repository))
    store.remove("")


def test_metrics_of_replicas_and_of_fronts_are_exported(cluster, demo_repository, scene):
    import ray

    cluster.serve(repository=str(demo_repository))
    url = f"{cluster.url}/v1/models/digits/predict"
    assert httpx.post(url, content=scene).status_code == 200
    ports = [node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]]

    def exported() -> bool:
        texts = [httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in ports]
        ones = [line for text in texts for line in text.splitlines() if line.endswith(" 1.0")]
        return all(
            any(line.startswith(name) and 'model="digits"' in line and of in line for line in ones)
            for name, of in (
                ("ray_nv_inference_count{", 'deployment="digits"'),
                ("ray_fovea_model_ready{", 'deployment="@front"'),
            )
        )

    until(exported)
