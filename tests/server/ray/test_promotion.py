"""Promotions where a front describes models and replicas compute them."""

import shutil

import httpx
import pytest
from tests.keyed import until
from tests.load import Load, over_grpc, over_http
from tests.server.ray.servers import start_front


@pytest.fixture
def front(demo_versions, tmp_path):
    front = start_front(shutil.copytree(demo_versions, tmp_path / "repository"))
    yield front
    front.stop()


def test_replicas_follow_and_no_request_fails(front):
    url = f"{front.url}/v1/models/digits"
    with Load(over_http(front.url), 2) as http, Load(over_grpc(front.grpc), 2) as rpc:
        for load in (http, rpc):
            load.wait_for_more(4)
        for change, version in (("promote", "1"), ("rollback", "2")) * 2:
            given = {"version": 1} if change == "promote" else {}
            answer = httpx.post(f"{url}/{change}", json=given, timeout=60)
            assert (answer.status_code, answer.json()["current"]) == (200, version), answer.text
            assert httpx.get(url).json()["version"] == version
            for load in (http, rpc):
                before = load.answered[version]
                until(lambda: load.failed or load.answered[version] > before)  # noqa: B023
        # A replica gives a canary its share, and the front lets it decide.
        plan = {"version": 1, "canary": 0.5, "seconds": 1}
        assert httpx.post(f"{url}/promote", json=plan, timeout=60).status_code == 200
        until(lambda: httpx.get(f"{url}/history").json()["current"] == "1")
    assert not http.failed + rpc.failed
    assert set(http.answered) | set(rpc.answered) == {"1", "2"}
    [*_, last] = httpx.get(f"{url}/history").json()["events"]
    assert last["action"] == "canary_passed"
