"""Tests that no request fails under load while replicas die, are replaced, or scale."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.built import build
from tests.cluster.conftest import until
from tests.promoting import clients, there_and_back

from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.cluster

TWO = {"min_replicas": 2, "max_replicas": 2}
PAUSE_S = 0.05


@pytest.fixture(scope="module")
def large() -> bytes:
    """An image that takes long to decode."""
    noise = np.random.default_rng(1).integers(0, 255, (3000, 4000, 3), np.uint8)
    stream = BytesIO()
    Image.fromarray(noise).save(stream, "JPEG", quality=80)
    return stream.getvalue()


@pytest.fixture(scope="module")
def changing(two_models, tmp_path_factory) -> Path:
    """A repository that changes while it is served."""
    return Path(shutil.copytree(two_models, tmp_path_factory.mktemp("changing") / "models"))


def test_overload_is_answered_once_and_as_by_serve(cluster, two_models, large):
    cluster.serve(repository=str(two_models), settings={"max_queue": 4})
    url = f"{cluster.url}/v1/models/digits/predict"

    def send(_: int) -> httpx.Response:
        return httpx.post(url, content=large, timeout=600)

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(send, range(40)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) < 40
    for answer in refused:
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1


def test_a_deadline_ends_a_wait(cluster, large):
    url = f"{cluster.url}/v1/models/digits/predict"
    answer = httpx.post(url, content=large, headers={"x-request-timeout-ms": "5"}, timeout=60)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"


def test_an_idle_model_goes_and_a_request_wakes_it(cluster, two_models, scene):
    idle = {"min_replicas": 0, "max_replicas": 2, "downscale_delay_s": 1}
    cluster.serve(repository=str(two_models), models={"spare": idle})
    until(lambda: cluster.running("spare") == 0)

    # What only asks about it lets it sleep.
    described = httpx.get(f"{cluster.url}/v1/models/spare").json()
    assert (described["backend"], described["ready"]) == ("openvino", True)
    assert httpx.get(f"{cluster.url}/v1/models/spare/statistics").status_code == 200
    assert len(httpx.get(f"{cluster.url}/v1/models").json()["models"]) == 2
    assert cluster.running("spare") == 0

    with ThreadPoolExecutor(3) as pool:
        url = f"{cluster.url}/v1/models/spare/predict"
        answers = list(pool.map(lambda _: httpx.post(url, content=scene, timeout=600), range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    until(lambda: cluster.running("spare") == 0)


def test_load_starts_replicas(cluster, two_models, load):
    more = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0.5}
    more |= {"target_ongoing_requests": 1, "downscale_delay_s": 1}
    cluster.serve(repository=str(two_models), models={"digits": more})
    with load("digits", clients=6) as under:
        until(lambda: cluster.running("digits") == 2)
        under.wait_for(50)
    assert under.failed == []
    until(lambda: cluster.running("digits") == 1)


def test_a_killed_replica_loses_no_request(cluster, two_models, load):
    import ray

    cluster.serve(repository=str(two_models), models={"digits": TWO})
    before = cluster.replicas("digits")
    with load("digits") as under:
        for replica in before:
            ray.kill(replica)
            under.wait_for(30)
        under.pause_s = PAUSE_S
        gone = {replica._actor_id for replica in before}
        until(lambda: not gone & {each._actor_id for each in cluster.replicas("digits")})
        until(lambda: cluster.running("digits") == 2)
    assert under.failed == []


def test_a_killed_node_loses_no_request(cluster, two_models, load):
    cluster.serve(repository=str(two_models), models={"digits": TWO})
    with load("digits") as under:
        cluster.cluster.remove_node(cluster.workers.pop(0), allow_graceful=False)
        under.wait_for(100)
        under.pause_s = PAUSE_S
        until(lambda: cluster.running("digits") == 2)
    assert under.failed == []
    cluster.add_worker()


def test_a_new_version_and_other_replicas_under_load(cluster, changing, demo_model, load):
    cluster.serve(repository=str(changing), models={"digits": TWO})
    with load("digits") as under:
        under.pause_s = PAUSE_S
        # Replicas take what appears in the repository.
        build(BuildPlan(demo_model, "digits", changing, "openvino"))
        until(lambda: under.answers[-1].json()["version"] == "2")
        under.wait_for(50)
        # Other cores: every replica is replaced.
        before = {replica._actor_id for replica in cluster.replicas("digits")}
        done = cluster.deploy(repository=str(changing), models={"digits": {**TWO, "cpus": 2}})
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: not before & {each._actor_id for each in cluster.replicas("digits")})
        under.wait_for(50)
        # One of them goes.
        done = cluster.deploy(repository=str(changing), models={"digits": {"cpus": 2}})
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: len(cluster.replicas("digits")) == 1)
        under.wait_for(50)
    assert under.failed == []
    assert {answer.json()["version"] for answer in under.answers} == {"1", "2"}


def test_a_promotion_reaches_the_replicas_of_all_nodes(cluster, demo_versions, tmp_path, scene):
    repository = shutil.copytree(demo_versions, tmp_path / "models")
    cluster.serve(repository=str(repository), models={"digits": TWO})
    url = f"{cluster.url}/v1/models/digits"
    with clients(cluster.url, f"{cluster.host}:{cluster.grpc_port}", 2) as loads:
        there_and_back(cluster.url, loads, 2)
        assert httpx.post(f"{url}/promote", json={"version": 1}, timeout=60).status_code == 200

        def answers() -> set[str]:
            found = (httpx.post(f"{url}/predict", content=scene, timeout=60) for _ in range(40))
            return {each.json()["version"] for each in found}

        # Of two replicas, none keeps out of the way of so many.
        until(lambda: answers() == {"1"})
    assert [load.failed for load in loads] == [[], []]
    import ray

    def node(_: object) -> str:
        return str(ray.get_runtime_context().get_node_id())

    places = [each.__ray_call__.remote(node) for each in cluster.replicas("digits")]
    assert len({*ray.get(places)}) == 2


def test_a_model_that_leaves_the_repository_is_not_ready(cluster, changing, scene):
    cluster.serve(repository=str(changing), models={"digits": {"cpus": 2}})
    shutil.rmtree(changing / "spare")
    url = f"{cluster.url}/v1/models/spare"
    until(lambda: httpx.get(f"{url}/ready").status_code == 503)
    until(lambda: httpx.post(f"{url}/predict", content=scene).status_code == 503)
