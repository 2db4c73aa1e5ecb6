"""Keys and secrets over every transport: while their file changes, and what they may cost."""

import asyncio
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue

import httpx
import pytest
from tests.keyed import key, tensor, until
from tests.serving import PROGRAM, RunningServer, start_server
from tritonclient import grpc
from tritonclient.utils import InferenceServerException
from websockets.sync.client import connect

from fovea_client import AsyncClient, Client, ServerError

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"
SCOPES = ("predict", "control", "metrics")


@dataclass
class Guarded:
    server: RunningServer
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def guarded(demo_repository, tmp_path_factory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("keys")
    file = folder / "keys.json"
    tokens = {each: key("add", each, "--keys", file, "--scope", each) for each in SCOPES}
    tokens["cams"] = key("add", "cams", "--keys", file, "--model", "cam-*")
    tokens["expired"] = key("add", "expired", "--keys", file, "--expires", "1s")
    tokens["unknown"] = "fov_unknown"
    # Not forked, as its command line is read.
    server = start_server(demo_repository, folder, [f"--keys={file}"], program=PROGRAM)
    yield Guarded(server, tokens)
    assert server.stop() == 0
    told = server.log.read_text()
    assert not [token for token in tokens.values() if token in told]


def own(guarded: Guarded, **given: object) -> httpx.Response:
    return httpx.get(f"{guarded.server.url}/v1/keys/self", **given)  # type: ignore[arg-type]


def test_every_way_to_send_a_key(guarded):
    token = guarded.tokens["predict"]
    for given in (
        {"headers": {"x-api-key": token}},
        {"headers": {"authorization": f"bearer {token}"}},
        # curl --user and Label Studio send a key so.
        {"auth": ("anybody", token)},
    ):
        assert own(guarded, **given).json()["name"] == "predict"
    refused = own(guarded, headers={"authorization": token})
    assert "write Authorization: Bearer KEY" in refused.text
    ended = {"x-api-key": guarded.tokens["expired"]}
    until(lambda: own(guarded, headers=ended).status_code == 401)
    for given in (
        {"headers": {"authorization": token}},
        {"headers": {"authorization": "Basic %%"}},
        {"auth": ("anybody", "wrong")},
        *({"headers": {"x-api-key": guarded.tokens[name]}} for name in ("expired", "unknown")),
        {},
    ):
        refused = own(guarded, **given)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == 'Bearer realm="fovea"'
        assert token not in refused.text


def test_a_first_message_of_a_socket_has_a_bound(guarded):
    url = guarded.server.url
    stream = f"{url.replace('http', 'ws', 1)}/v1/models/digits/stream"
    with connect(stream, origin=url) as line:
        line.send("[" * 4000)
        assert json.loads(line.recv(60))["error"]["code"] == "unauthenticated"


def test_a_key_tells_of_itself_and_is_named_in_the_log(guarded):
    headers = {"x-api-key": guarded.tokens["cams"], "x-request-id": "own-key"}
    told = own(guarded, headers=headers).json()
    assert (told["name"], told["models"]) == ("cams", ["cam-*"])
    assert told["expires"] is told["images_left"] is None
    until(lambda: "id=own-key key=cams\n" in guarded.server.log.read_text())
    headers = {"x-api-key": guarded.tokens["control"]}
    httpx.post(guarded.server.url + "/v2/logging", json={"log_info": True}, headers=headers)
    until(lambda: "by 127.0.0.1 with key control: 200" in guarded.server.log.read_text())


def test_keys_and_secrets_are_in_no_command_line(
    guarded, serve, demo_repository, tmp_path, monkeypatch
):
    file = tmp_path / "admin"
    file.write_text("hunter2\n")
    monkeypatch.setenv("FOVEA_GRPC_RESTRICTED_PROTOCOL", "inference,metadata:key=of-environment")
    restricted = f"--http-restricted-api=metadata:admin@{file}"
    server = serve(demo_repository, restricted, program=PROGRAM)
    hidden = ("hunter2", "of-environment", *guarded.tokens.values())
    for each in (server, guarded.server):
        listed = Path(f"/proc/{each.process.pid}/cmdline").read_text()
        assert not [secret for secret in hidden if secret in listed]
    for given, status in (({}, 403), ({"admin": "wrong"}, 403), ({"admin": "hunter2"}, 200)):
        assert httpx.get(f"{server.url}/v2", headers=given).status_code == status
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_server_metadata()
        assert client.get_server_metadata(headers={"triton-grpc-protocol-key": "of-environment"})
    assert server.stop() == 0
    assert "hunter2" not in server.log.read_text()


def test_keys_change_under_load(demo_repository, serve, scene, tmp_path):
    """No request that was allowed fails; what is revoked does not pass for long."""
    file = tmp_path / "keys.json"
    steady, rotated, revoked = (key("add", n, "--keys", file) for n in ("a", "b", "c"))
    server = serve(demo_repository, f"--keys={file}")
    statuses: list[int] = []
    stop = threading.Event()

    def ask(token: str) -> int:
        headers = {"x-api-key": token}
        return httpx.post(server.url + PREDICT, content=scene, headers=headers).status_code

    def load() -> None:
        while not stop.is_set():
            statuses.append(ask(steady))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert ask(revoked) == 200
        newest = key("rotate", "b", "--keys", file, "--grace", "1h")
        until(lambda: ask(newest) == 200)
        assert ask(rotated) == 200
        key("rm", "c", "--keys", file)
        until(lambda: ask(revoked) == 401)
        whole = file.read_bytes()
        file.write_bytes(whole[:-20])
        until(lambda: "the previous keys stay valid" in server.log.read_text())
        file.unlink()
        until(lambda: "No such file" in server.log.read_text())
        assert ask(newest) == 200
        file.write_bytes(whole)
        key("rotate", "b", "--keys", file, "--grace", "1s")
        until(lambda: ask(newest) == 401)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}


def test_our_clients_send_the_key_of_the_environment(guarded, fovea, monkeypatch, scene, tmp_path):
    url, image = guarded.server.url, tmp_path / "scene.jpg"
    image.write_bytes(scene)
    predict = ("predict", "digits", image, "--url", url, "--json")
    bench = ("bench", "digits", "--url", url, "--images", tmp_path, "--seconds", "1", "--json")
    code, _, told = fovea(*predict)
    assert (code, "this server requires a key" in told) == (1, True)
    monkeypatch.setenv("FOVEA_API_KEY", guarded.tokens["predict"])
    assert fovea(*predict)[0] == 0
    code, shown, told = fovea(*bench)
    assert code == 0, told
    assert json.loads(shown)["levels"][0]["errors"] == []
    with Client(url) as client:
        assert client.predict("digits", scene).detections
        assert guarded.tokens["predict"] not in repr(client) + repr(vars(client))
    cams = {"Authorization": f"Bearer {guarded.tokens['cams']}"}
    for given, status in (
        ({"api_key": guarded.tokens["metrics"]}, 403),
        ({"api_key": ""}, 401),
        ({"headers": cams}, 403),
    ):
        with Client(url, **given) as client, pytest.raises(ServerError) as refused:
            client.predict("digits", scene)
        assert refused.value.status == status

    async def asked() -> int:
        async with AsyncClient(url) as client:
            return len((await client.predict("digits", scene)).detections)

    assert asyncio.run(asked())


def test_files_that_are_none_end_the_start(fovea, demo_repository, tmp_path):
    for flag in (
        f"--keys={tmp_path / 'keys.json'}",
        f"--http-restricted-api=logging:key@{tmp_path}/x",
    ):
        code, _, told = fovea("serve", demo_repository, flag)
        assert (code, str(tmp_path) in told) == (2, True)


@pytest.fixture(scope="module")
def patterned(demo_repository, tmp_path_factory):
    """A server with two models, and a key for one of them alone."""
    folder = tmp_path_factory.mktemp("patterned")
    repository, file = folder / "models", folder / "keys.json"
    for name in ("cam-1", "hidden"):
        copy = shutil.copytree(demo_repository / "digits", repository / name)
        config = copy / "config.pbtxt"
        config.write_text(config.read_text().replace("digits", name))
    scopes = ("--scope", "predict,control")
    token = key("add", "cam", "--keys", file, "--model", "cam-*", *scopes)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--api=roboflow")
    server = start_server(repository, folder, (*flags, f"--keys={file}"))
    yield server, {"x-api-key": token}, file
    assert server.stop() == 0


def test_a_key_for_some_models_sees_and_controls_no_others(patterned):
    server, headers, _ = patterned
    with httpx.Client(base_url=server.url, headers=headers) as client:
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/v2/models/stats"),
            ("POST", "/v2/repository/index"),
            ("GET", "/model/registry"),
            ("POST", "/v1/models/cam-2/predict"),
            ("GET", "/v2/models/cam-2/ready"),
        ):
            answer = client.request(method, path, content=b"x" if "predict" in path else None)
            assert "hidden" not in answer.text, path
        for path, body in (
            ("/model/remove", {"model_id": "hidden/1"}),
            ("/model/add", {"model_id": "hidden/1"}),
            ("/model/clear", {}),
            ("/v2/repository/models/hidden/unload", {}),
            ("/v2/logging", {"log_info": False}),
            ("/v2/systemsharedmemory/region/r/register", {"key": "/r", "byte_size": 1}),
        ):
            assert client.post(path, json=body).status_code == 403, path
        assert client.post("/model/remove", json={"model_id": "cam-1/1"}).status_code == 200
        assert client.post("/model/add", json={"model_id": "cam-1/1"}).status_code == 200
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        listed = client.get_model_repository_index(headers=headers).models
        assert {model.name for model in listed} == {"cam-1"}
        counted = client.get_inference_statistics(headers=headers).model_stats
        assert {model.name for model in counted} == {"cam-1"}
        for change in (client.unload_model, client.load_model):
            with pytest.raises(InferenceServerException, match="may not use model"):
                change("hidden", headers=headers)
        with pytest.raises(InferenceServerException, match="changes the whole server"):
            client.update_log_settings({"log_info": False}, headers=headers)


ENSEMBLE = """{
  "name": "cam-ens", "platform": "ensemble", "max_batch_size": 1,
  "input": [{"name": "I", "data_type": "TYPE_FP32", "dims": [3, 320, 320]}],
  "output": [{"name": "O", "data_type": "TYPE_FP32", "dims": [-1, -1]}],
  "ensemble_scheduling": {"step": [{"model_name": "NAME", "model_version": -1,
    "input_map": {"images": "I"}, "output_map": {"output0": "O"}}]}}"""


def test_a_key_for_some_models_reads_their_metrics_alone(patterned):
    server, headers, file = patterned
    reader = key("add", "reader", "--keys", file, "--model", "cam-*", "--scope", "metrics,predict")
    both = {"x-api-key": reader}
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    until(lambda: httpx.get(url, headers=both).status_code == 200)
    for given in (headers, both):
        httpx.post(server.predict_url("cam-1"), headers=given, content=b"x")
    text = httpx.get(url, headers=both).text
    assert 'model="cam-1"' in text
    assert 'key="reader"' in text
    assert "hidden" not in text
    assert 'key="cam"' not in text


def test_who_may_not_know_of_a_model_is_not_told_why_it_is_not_ready(
    demo_repository, serve, tmp_path
):
    repository, file = tmp_path / "models", tmp_path / "keys.json"
    shutil.copytree(demo_repository / "digits", repository / "digits")
    (repository / "prototype" / "1").mkdir(parents=True)
    (repository / "prototype" / "1" / "model.onnx").write_bytes(b"no model")
    whole = {"x-api-key": key("add", "owner", "--keys", file)}
    some = {"x-api-key": key("add", "cam", "--keys", file, "--model", "digits")}
    server = serve(repository, f"--keys={file}", wait=False)
    ready = f"{server.url}/v2/health/ready"
    until(lambda: "prototype/1" in httpx.get(ready, headers=whole).text)
    until(lambda: httpx.get(f"{server.url}/v2/models/digits/ready").status_code == 200)
    for path in ("/v1/health/ready", "/v2/health/ready", "/v1/models/prototype/ready"):
        assert "prototype/1" in httpx.get(server.url + path, headers=whole).text, path
    for headers in ({}, some):
        for path in ("/v1/health/ready", "/v2/health/ready"):
            answer = httpx.get(server.url + path, headers=headers)
            assert answer.status_code in (400, 503)
            assert "1 model not ready" in answer.text
            assert "prototype" not in answer.text
        for path in ("/v1/models/prototype/ready", "/v2/models/prototype/ready"):
            answer = httpx.get(server.url + path, headers=headers)
            assert "see the server's log" in answer.text
            assert "onnx" not in answer.text


def test_an_ensemble_of_a_client_runs_only_what_its_key_is_for(patterned):
    server, headers, _ = patterned
    files = {"file:1/x.txt": "eA=="}
    for name, status in (("hidden", 403), ("cam-1", 200)):
        given = {"parameters": {"config": ENSEMBLE.replace("NAME", name), **files}}
        url = f"{server.url}/v2/repository/models/cam-ens/load"
        answer = httpx.post(url, headers=headers, json=given)
        assert answer.status_code == status, answer.text
    config, files = ENSEMBLE.replace("NAME", "hidden"), {"file:1/x.txt": b"x"}
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        load = partial(client.load_model, "cam-ens", headers=headers, config=config, files=files)
        with pytest.raises(InferenceServerException, match="may not use model"):
            load()


def test_who_has_no_key_learns_no_name_of_a_model(patterned, scene):
    server, _, _ = patterned
    for path in ("/v2/models/nope/ready", "/v1/models/nope/ready", "/nope/1", "/infer/x"):
        for body in (b"", scene):
            answer = httpx.request("POST" if body else "GET", server.url + path, content=body)
            assert "hidden" not in answer.text, path


def test_a_key_that_ends_is_out_of_an_open_stream(patterned):
    server, _, file = patterned
    headers = {"x-api-key": key("add", "leaving", "--keys", file, "--model", "cam-*")}
    until(lambda: httpx.get(f"{server.url}/v1/keys/self", headers=headers).is_success)
    found: Queue[tuple[object, object]] = Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:

        def refused() -> bool:
            client.async_stream_infer("cam-1", [tensor()])
            return "unknown key" in str(found.get(timeout=60)[1])

        client.start_stream(lambda result, error: found.put((result, error)), headers=headers)
        assert not refused()
        key("rm", "leaving", "--keys", file)
        until(refused)
        client.stop_stream()


def test_bodies_of_strangers_hold_little_memory(patterned):
    server, _, _ = patterned
    url = f"{server.url}/infer/object_detection"
    assert httpx.post(url, content=b" " * (17 << 20)).status_code == 401
    with ExitStack() as stack:
        head = (
            "POST /infer/object_detection HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Length: 1000000\r\n\r\n"
        )
        for _ in range(8):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            held.sendall(head.encode())
        until(lambda: httpx.post(url, json={"image": []}).status_code == 429)
    asked = {"model_id": "a", "image": {"type": "base64", "value": ""}}
    until(lambda: httpx.post(url, json=asked).status_code == 401)


LIMITS = {
    "slow": ("--rate", "0.2/s"),
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
        pytest.raises(InferenceServerException, match=r"0\.2/s") as error,
    ):
        client.infer("digits", [tensor()], headers=headers)
    assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    row = {"name": "images", "datatype": "FP32", "shape": [1, 3, 320, 320], "data": [0.0] * 307200}
    url = f"{server.url}/v2/models/digits/infer"
    answer = httpx.post(url, json={"inputs": [row]}, headers=headers)
    assert answer.status_code == 429
    assert "retry-after" in answer.headers


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
    assert "has 11 of 20 images left for this month" in refused.text
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
    assert 'fovea_key_requests_total{key="counted",status="rate_limited"} 1\n' in metrics
    assert 'fovea_key_images_total{key="counted"} 2\n' in metrics


def test_a_tensor_costs_its_rows_and_a_wrong_shape_no_more_than_a_batch(limited):
    server, headers = limited("daily")

    def left() -> int:
        own = httpx.get(server.url + "/v1/keys/self", headers=headers).json()
        return int(own["quota_left"])

    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.infer("digits", [tensor()], headers=headers)
    assert left() == 999
    given = {"name": "images", "datatype": "FP32", "shape": [1000, 0, 0, 0], "data": []}
    url = f"{server.url}/v2/models/digits/infer"
    assert httpx.post(url, json={"inputs": [given]}, headers=headers).status_code == 400
    assert left() >= 999 - 64
