"""A front and a replica, over HTTP and gRPC."""

import json
import shutil
import threading
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("ray")
import tritonclient.grpc as triton
from PIL import Image
from tests.keyed import until as wait_until
from tests.promoting import clients, there_and_back
from tests.server.ray.servers import start_front
from tritonclient.utils import InferenceServerException

from fovea_server.auth.key import digest_of, new_token
from fovea_server.ray.faults import mark

pytestmark = pytest.mark.cluster

PAGE = "https://page.example"
PREDICT = "/v1/models/digits/predict"
INFER = "/v2/models/digits/infer"
COUNTERS = ("/v1/models/digits/statistics", "/v2/models/stats", "/v2/models/digits/stats")


@pytest.fixture(scope="module")
def front(demo_repository):
    """One whose counters are restricted, and which a page may use."""
    started = start_front(
        demo_repository,
        cors_origin=(PAGE,),
        http_max_input_size=200_000,
        http_restricted_api=("statistics:Admin=http",),
        grpc_restricted_protocol=("statistics:admin=grpc",),
    )
    yield started
    started.stop()


def zeros() -> triton.InferInput:
    tensor = triton.InferInput("images", [1, 3, 320, 320], "FP32")
    return tensor.set_data_from_numpy(np.zeros((1, 3, 320, 320), np.float32))


def pixels(scene: bytes) -> triton.InferInput:
    tensor = triton.InferInput("images", [1], "BYTES")
    return tensor.set_data_from_numpy(np.array([scene], dtype=object))


def test_what_a_replica_answers_it_alone_measures(front, scene):
    before, here = front.counted(front.replica), front.counted(front.serving)
    answer = httpx.post(front.url + PREDICT, content=scene, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert httpx.post(front.url + PREDICT, content=b"nothing").status_code == 400
    with triton.InferenceServerClient(front.grpc) as client:
        client.infer("digits", [pixels(scene)])
        with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT"):
            client.infer("digits", [pixels(b"nothing")])

    def new() -> dict[str, float]:
        after = front.counted(front.replica)
        return {status: count - before.get(status, 0) for status, count in after.items()}

    # The last call is measured when it has been answered.
    wait_until(lambda: new() == {"200": 1, "400": 1, "OK": 1, "INVALID_ARGUMENT": 1})
    assert front.counted(front.serving) == here


def test_counters_are_those_of_the_replicas_and_restricted_in_the_front(front, scene):
    secret = {"admin": "http"}

    def count(path: str) -> int:
        found = httpx.get(front.url + path, headers=secret).json()
        versions = found.get("versions") or found["model_stats"]
        return sum(version["inference_count"] for version in versions)

    before = [count(path) for path in COUNTERS]
    assert httpx.post(front.url + PREDICT, content=scene).status_code == 200
    assert [count(path) for path in COUNTERS] == [number + 1 for number in before]
    for path in COUNTERS:
        assert httpx.get(front.url + path).status_code == 403
    with triton.InferenceServerClient(front.grpc) as client:
        headers = {"triton-grpc-protocol-admin": "grpc"}
        [counted] = client.get_inference_statistics("digits", headers=headers).model_stats
        assert counted.inference_count == count(COUNTERS[1])
        with pytest.raises(InferenceServerException):
            client.get_inference_statistics("digits")


def test_pages_may_read_what_the_front_answers_and_what_it_passes_on(front, scene):
    for path, body, status in (
        (PREDICT, scene, 200),
        (PREDICT, b"nothing", 400),
        (PREDICT, bytes(300_000), 413),
        (INFER, bytes(300_000), 400),
    ):
        answer = httpx.post(front.url + path, content=body, headers={"origin": PAGE})
        assert answer.status_code == status
        assert answer.headers.get_list("access-control-allow-origin") == [PAGE]


def test_pages_of_others_are_refused_before_a_replica_is_asked(front, scene):
    before = front.counted(front.replica)
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        for path in (PREDICT, INFER):
            refused = httpx.post(front.url + path, content=scene, headers=headers)
            assert refused.status_code == 403
    assert front.counted(front.replica) == before


def test_a_replica_refuses_whoever_has_no_token(front, scene):
    about = front.behind.about
    url = f"http://127.0.0.1:{about['http']}"
    for path in (PREDICT, INFER, "/v1/models"):
        for headers in ({}, {"fovea-token": "guess"}):
            refused = httpx.post(url + path, content=scene, headers=headers)
            assert refused.status_code == 400
    with triton.InferenceServerClient(f"127.0.0.1:{about['grpc']}") as client:
        for call in (client.is_server_live, lambda: client.infer("digits", [zeros()])):
            with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
                call()


def test_a_client_that_leaves_is_no_error_of_the_replica(front):
    # Few bytes, which take long to decode: quick answers are not given up.
    large = BytesIO()
    Image.fromarray(np.zeros((3000, 3000, 3), np.uint8)).save(large, "PNG")
    before = front.counted(front.replica).get("499", 0)

    def left() -> bool:
        # It may have been answered before it left.
        url, headers = front.url + PREDICT, {"x-request-timeout-ms": "40"}
        late = httpx.post(url, content=large.getvalue(), headers=headers)
        assert late.status_code in (200, 504)
        return front.counted(front.replica).get("499", 0) > before

    wait_until(left)
    assert "500" not in front.counted(front.replica)


def test_requests_wait_for_a_replica_and_only_so_many(front, scene):
    front.there({})
    answers: list[httpx.Response] = []

    def send() -> None:
        answers.append(httpx.post(front.url + PREDICT, content=scene, timeout=60))

    senders = [threading.Thread(target=send) for _ in range(9)]
    for sender in senders:
        sender.start()
    try:
        wait_until(lambda: answers)
        [refused] = answers
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        late = httpx.post(front.url + INFER, content=b"{}", headers={"x-request-timeout-ms": "50"})
        assert late.status_code == 503
        assert front.forwarder._handle.woken == 1
    finally:
        front.there({"1": front.behind.about})
        for sender in senders:
            sender.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 8 + [429]


def test_a_model_whose_replicas_do_not_start_is_not_ready(front, scene):
    paths = ("/v2/health/ready", "/v2/models/digits/ready", "/v1/models/digits/ready")

    def statuses() -> list[int]:
        return [httpx.get(front.url + path).status_code for path in paths]

    front.there({})
    assert statuses() == [200] * 3
    mark({"digits": "no engine"}, front.serving.models, {"digits": front.forwarder})
    try:
        assert 200 not in statuses()
        refused = httpx.post(front.url + PREDICT, content=scene)
        assert (refused.status_code, "no engine" in refused.text) == (503, True)
        with (
            triton.InferenceServerClient(front.grpc) as client,
            pytest.raises(InferenceServerException, match="no engine"),
        ):
            client.infer("digits", [pixels(scene)])
        # What the front answers itself is in its metrics, once the answer is sent.
        wait_until(lambda: front.counted(front.serving).get("UNAVAILABLE") == 1)
        assert front.counted(front.serving)["503"] >= 1
    finally:
        mark({}, front.serving.models, {"digits": front.forwarder})
        front.there({"1": front.behind.about})
    assert statuses() == [200] * 3
    assert httpx.post(front.url + PREDICT, content=scene).status_code == 200


def test_a_stream_has_answers_in_order_and_the_parameters_of_serve(front, scene):
    answers: list[tuple[Any, Any]] = []
    with triton.InferenceServerClient(front.grpc) as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        for number in range(4):
            model = "digit" if number == 2 else "digits"
            client.async_stream_infer(model, [pixels(scene)], request_id=str(number))
        client.stop_stream()
    assert "digit" in answers[2][1].message()
    for number in (0, 1, 3):
        response = answers[number][0].get_response()
        assert response.id == str(number)
        assert response.parameters["triton_final_response"].bool_param


def test_keys_hold_in_the_front_and_for_each_request_of_a_stream(demo_repository, tmp_path, scene):
    tokens = {name: new_token() for name in ("cam", "all")}
    entries = [
        {
            "name": name,
            "secrets": [{"sha256": digest_of(token)}],
            "scopes": ["predict"],
            "created": "2026-11-26T00:00:00Z",
            "models": ["cam-*"] if name == "cam" else [],
            "quota": "3/month",
        }
        for name, token in tokens.items()
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": entries}))
    front = start_front(demo_repository, keys_file=file)

    def status(method: str, path: str, key: str | None) -> int:
        headers = {} if key is None else {"x-api-key": tokens[key]}
        body = scene if method == "POST" else None
        return httpx.request(method, front.url + path, headers=headers, content=body).status_code

    try:
        for path in ("/v1/models/digits/statistics", "/v2/models/stats", "/v1/models"):
            assert status("GET", path, None) == 401
            assert status("GET", path, "all") == 200
        assert status("GET", "/v1/models/digits/statistics", "cam") == 403
        assert status("POST", PREDICT, None) == 401
        assert status("POST", PREDICT, "cam") == 403
        assert status("POST", PREDICT, "all") == 200
        with triton.InferenceServerClient(front.grpc) as client:
            for key, said in (
                ("cam", "model"),
                ("all", None),
                ("all", None),
                ("all", "3 images"),
            ):
                answers: list[tuple[Any, Any]] = []
                client.start_stream(
                    lambda result, error, answers=answers: answers.append((result, error)),
                    headers={"x-api-key": tokens[key]},
                )
                client.async_stream_infer("digits", [zeros()])
                client.stop_stream()
                [(result, error)] = answers
                assert (result is not None) if said is None else said in error.message()
    finally:
        front.stop()


def test_replicas_follow_a_promotion_and_no_request_fails(demo_versions, tmp_path):
    front = start_front(shutil.copytree(demo_versions, tmp_path / "repository"))
    url = f"{front.url}/v1/models/digits"
    with clients(front.url, front.grpc, 2) as (http, rpc):
        there_and_back(front.url, (http, rpc), 2)
        # A replica gives a canary its share, and the front lets it decide.
        plan = {"version": 1, "canary": 0.5, "seconds": 1}
        assert httpx.post(f"{url}/promote", json=plan, timeout=60).status_code == 200
        wait_until(lambda: httpx.get(f"{url}/history").json()["current"] == "1")
    assert not http.failed + rpc.failed
    assert set(http.answered) | set(rpc.answered) == {"1", "2"}
    [*_, last] = httpx.get(f"{url}/history").json()["events"]
    assert last["action"] == "canary_passed"
    front.stop()
