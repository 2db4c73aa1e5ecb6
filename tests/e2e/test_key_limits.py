"""Rates and quotas of keys on a real server."""

import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from tests.keyed import key, tensor, until
from tests.serving import RunningServer, start_server
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"
LIMITS = {
    "slow": ("--rate", "0.2/s"),
    "fast": ("--rate", "8/s"),
    "counted": ("--scope", "predict,metrics", "--rate", "3/h"),
    "daily": ("--quota", "1000/day"),
}

Limited = Callable[[str], tuple[RunningServer, dict[str, str]]]


@pytest.fixture(scope="module")
def limited(demo_repository, tmp_path_factory) -> Iterator[Limited]:
    """A server whose keys have limits; called with the name of a key, it gives its headers, too."""
    folder = tmp_path_factory.mktemp("keys")
    file = folder / "keys.json"
    tokens = {name: key("add", name, "--keys", file, *given) for name, given in LIMITS.items()}
    server = start_server(demo_repository, folder, [f"--keys={file}"])
    yield lambda name: (server, {"x-api-key": tokens[name]})
    assert server.stop() == 0


def test_a_rate_counts_images(limited, scene):
    server, headers = limited("slow")

    def ask(images: int) -> httpx.Response:
        files = [("image", scene)] * images
        return httpx.post(server.url + PREDICT, files=files, headers=headers)

    assert ask(1).status_code == 200
    refused = ask(1)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    wait_s = int(refused.headers["retry-after"])
    assert 1 <= wait_s <= 5
    time.sleep(wait_s)
    # It is taken from a full bucket, and the next one waits for both.
    assert ask(2).status_code == 200
    assert int(ask(1).headers["retry-after"]) > 5
    left = httpx.get(server.url + "/v1/keys/self", headers=headers).json()
    assert (left["images_per_s"], left["images_left"]) == (0.2, 0.0)
    with (
        grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException, match=r"may send 0\.2/s images") as error,
    ):
        client.infer("digits", [tensor()], headers=headers)
    assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    answer = httpx.post(
        server.url + "/v2/models/digits/infer",
        json={
            "inputs": [
                {
                    "name": "images",
                    "datatype": "FP32",
                    "shape": [1, 3, 320, 320],
                    "data": [0.0] * 307200,
                }
            ]
        },
        headers=headers,
    )
    assert answer.status_code == 429
    assert "retry-after" in answer.headers


def test_six_clients_get_the_rate_and_their_times_are_right(limited, scene):
    server, headers = limited("fast")
    served: list[int] = []
    refused: list[int] = []
    ends = time.monotonic() + 8

    def ask() -> None:
        with httpx.Client(headers=headers) as client:
            while time.monotonic() < ends:
                answer = client.post(server.url + PREDICT, content=scene)
                if answer.status_code == 200:
                    served.append(answer.status_code)
                    continue
                assert answer.status_code == 429
                refused.append(int(answer.headers["retry-after"]))
                time.sleep(refused[-1])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The bucket holds a second's worth. A busy machine serves less than the rate, and never more.
    assert 8 * 8 * 0.4 < len(served) <= (8 + 1) * 8
    # What comes in within the second that they are told to wait is more than all of them need.
    assert set(refused) == {1}
    assert len(refused) < len(served)


def test_a_quota_is_shared_and_outlives_a_kill(demo_repository, serve, scene, tmp_path):
    file = tmp_path / "keys.json"
    token = key("add", "cam", "--keys", file, "--quota", "20/month")
    flags = demo_repository, f"--keys={file}"
    first, second = serve(*flags), serve(*flags)
    headers = {"x-api-key": token}

    def left(server: RunningServer) -> int:
        own = httpx.get(server.url + "/v1/keys/self", headers=headers).json()
        assert own["quota"] == 20
        return int(own["quota_left"])

    def ask(server: RunningServer, images: int) -> httpx.Response:
        files = [("image", scene)] * images
        return httpx.post(server.url + PREDICT, files=files, headers=headers)

    assert ask(first, 5).status_code == ask(second, 4).status_code == 200
    until(lambda: left(first) == left(second) == 11)
    second.process.kill()
    second.process.wait()
    third = serve(*flags)
    assert left(third) == 11
    refused = ask(third, 12)
    assert refused.status_code == 429
    assert "has 11 of its 20 images of this month left" in refused.text
    assert int(refused.headers["retry-after"]) <= 31 * 86_400
    metrics = httpx.get(f"http://127.0.0.1:{first.metrics_port}/metrics", headers=headers)
    assert metrics.status_code == 403
    assert first.stop() == third.stop() == 0


def test_requests_are_counted_by_key(limited, scene):
    server, headers = limited("counted")
    for images in (2, 9):
        httpx.post(server.url + PREDICT, files=[("image", scene)] * images, headers=headers)
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics", headers=headers).text
    assert 'fovea_key_requests_total{key="counted",status="200"} 1\n' in metrics
    assert 'fovea_key_requests_total{key="counted",status="429"} 1\n' in metrics
    assert 'fovea_key_images_total{key="counted"} 2\n' in metrics


def test_a_wrong_shape_costs_no_more_than_a_batch(limited):
    server, headers = limited("daily")
    given = {"name": "images", "datatype": "FP32", "shape": [1000, 0, 0, 0], "data": []}
    url = f"{server.url}/v2/models/digits/infer"
    assert httpx.post(url, json={"inputs": [given]}, headers=headers).status_code == 400
    own = httpx.get(server.url + "/v1/keys/self", headers=headers).json()
    assert own["quota_left"] >= 1000 - 64
