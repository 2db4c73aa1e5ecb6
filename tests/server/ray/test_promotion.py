"""Promotions where a front describes models and replicas compute them."""

import shutil

import httpx
import pytest
from tests.keyed import until
from tests.promoting import clients, there_and_back
from tests.server.ray.servers import start_front

pytestmark = pytest.mark.cluster


@pytest.fixture
def front(demo_versions, tmp_path):
    front = start_front(shutil.copytree(demo_versions, tmp_path / "repository"))
    yield front
    front.stop()


def test_replicas_follow_and_no_request_fails(front):
    url = f"{front.url}/v1/models/digits"
    with clients(front.url, front.grpc, 2) as (http, rpc):
        there_and_back(front.url, (http, rpc), 2)
        # A replica gives a canary its share, and the front lets it decide.
        plan = {"version": 1, "canary": 0.5, "seconds": 1}
        assert httpx.post(f"{url}/promote", json=plan, timeout=60).status_code == 200
        until(lambda: httpx.get(f"{url}/history").json()["current"] == "1")
    assert not http.failed + rpc.failed
    assert set(http.answered) | set(rpc.answered) == {"1", "2"}
    [*_, last] = httpx.get(f"{url}/history").json()["events"]
    assert last["action"] == "canary_passed"
