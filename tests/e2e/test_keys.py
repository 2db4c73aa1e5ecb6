"""Keys over every transport, and while their file changes."""

import asyncio
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from queue import Queue

import httpx
import pytest
from tests.keyed import key, tensor, until
from tests.serving import PROGRAM, RunningServer, start_server
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from fovea_client import AsyncClient, Client, ServerError
from fovea_server.auth.key import digest_of, new_token

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"
# Method, address, and the scope that it takes: "any" key will do, or none at all.
ROUTES = [
    ("POST", PREDICT, "predict"),
    ("POST", "/v1/models/digits/versions/x/predict", "predict"),
    ("POST", "/v2/models/digits/infer", "predict"),
    ("POST", "/v2/models/digits/generate", "predict"),
    ("POST", "/v1/vision/detection", "predict"),
    ("POST", "/predict", "predict"),
    ("POST", "/infer/object_detection", "predict"),
    ("GET", "/v1/models", "any"),
    ("GET", "/v1/models/digits", "any"),
    ("GET", "/v1/models/digits/statistics", "any"),
    ("GET", "/v1/keys/self", "any"),
    ("GET", "/v2", "any"),
    ("GET", "/v2/models/digits", "any"),
    ("GET", "/v2/models/digits/config", "any"),
    ("GET", "/v2/models/stats", "any"),
    ("GET", "/v2/logging", "any"),
    ("POST", "/v2/repository/index", "any"),
    ("POST", "/v2/logging", "control"),
    ("POST", "/v2/repository/models/digits/load", "control"),
    ("POST", "/v2/repository/models/digits/unload", "control"),
    ("POST", "/v2/trace/setting", "control"),
    ("GET", "/v2/systemsharedmemory/status", "control"),
    ("GET", "/v1/health/live", "open"),
    ("GET", "/v1/health/ready", "open"),
    ("GET", "/v1/models/digits/ready", "open"),
    ("GET", "/v2/health/live", "open"),
    ("GET", "/v2/models/digits/ready", "open"),
    ("GET", "/", "open"),
    ("GET", "/docs", "open"),
    ("GET", "/openapi.json", "open"),
]
SCOPES = ("predict", "control", "metrics")


@dataclass
class Guarded:
    server: RunningServer
    file: Path
    tokens: dict[str, str]


def entry(name: str, token: str, *scopes: str, **more: object) -> dict[str, object]:
    created = datetime.now(UTC).isoformat()
    secrets = [{"sha256": digest_of(token)}]
    return {"name": name, "secrets": secrets, "scopes": scopes, "created": created, **more}


def write(file: Path, entries: list[dict[str, object]]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"keys": entries}))
    new.replace(file)


@pytest.fixture(scope="module")
def guarded(demo_repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    names = (*SCOPES, "expired", "cams", "unknown")
    tokens = {name: new_token() for name in names}
    over = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    entries = [entry(scope, tokens[scope], scope) for scope in SCOPES]
    entries.append(entry("expired", tokens["expired"], *SCOPES, expires=over))
    entries.append(entry("cams", tokens["cams"], *SCOPES, models=["cam-*"]))
    write(folder / "keys.json", entries)
    apis = ("deepstack", "label-studio", "roboflow")
    flags = [f"--keys={folder / 'keys.json'}", *(f"--api={api}" for api in apis)]
    # Not forked, as its command line is read.
    server = start_server(demo_repository, folder, flags, program=PROGRAM)
    yield Guarded(server, folder / "keys.json", tokens)
    assert server.stop() == 0
    told = server.log.read_text()
    assert not [token for token in tokens.values() if token in told]


def expected(scope: str, key: str | None) -> set[int] | None:
    """The statuses of a refusal; None where it is let in."""
    if scope == "open":
        return None
    if key in (None, "unknown", "expired"):
        return {401}
    return None if scope in ("any", key) else {403}


def test_a_key_without_its_scheme_is_told_the_form(guarded):
    headers = {"authorization": guarded.tokens["predict"]}
    answer = httpx.get(f"{guarded.server.url}/v1/models", headers=headers)
    assert (answer.status_code, "write Authorization: Bearer KEY" in answer.text) == (401, True)
    assert guarded.tokens["predict"] not in answer.text


@pytest.mark.parametrize("key", [None, "unknown", "expired", *SCOPES])
@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
def test_each_route_asks_for_its_scope(guarded, method, path, scope, key):
    headers = {} if key is None else {"authorization": f"Bearer {guarded.tokens[key]}"}
    answer = httpx.request(method, guarded.server.url + path, headers=headers)
    refused = expected(scope, key)
    if refused is None:
        assert answer.status_code not in (401, 403), answer.text
        return
    assert answer.status_code in refused, answer.text
    if key is None:
        assert "asks for a key" in answer.text
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"] == 'Bearer realm="fovea"'
    else:
        assert f"lacks the scope '{scope}'" in answer.text


@pytest.mark.parametrize("key", [None, "unknown", "expired", *SCOPES])
def test_metrics_ask_for_theirs(guarded, key):
    url = f"http://127.0.0.1:{guarded.server.metrics_port}/metrics"
    headers = {} if key is None else {"x-api-key": guarded.tokens[key]}
    answer = httpx.get(url, headers=headers)
    assert {answer.status_code} == (expected("metrics", key) or {200})


CALLS: list[tuple[str, Callable[[grpc.InferenceServerClient, dict[str, str]], object]]] = [
    ("predict", lambda client, headers: client.infer("digits", [tensor()], headers=headers)),
    ("any", lambda client, headers: client.get_server_metadata(headers=headers)),
    ("any", lambda client, headers: client.get_model_repository_index(headers=headers)),
    ("control", lambda client, headers: client.update_log_settings({"log_info": True}, headers)),
    ("open", lambda client, headers: client.is_server_live(headers=headers)),
]


@pytest.mark.parametrize("key", [None, "unknown", "expired", *SCOPES])
@pytest.mark.parametrize(("scope", "ask"), CALLS)
def test_grpc_asks_for_the_same(guarded, scope, ask, key):
    headers = {} if key is None else {"authorization": f"Bearer {guarded.tokens[key]}"}
    refused = expected(scope, key)
    with grpc.InferenceServerClient(f"127.0.0.1:{guarded.server.grpc_port}") as client:
        if refused is None:
            assert ask(client, headers)
            return
        with pytest.raises(InferenceServerException) as error:
            ask(client, headers)
    status = "UNAUTHENTICATED" if refused == {401} else "PERMISSION_DENIED"
    assert error.value.status() == f"StatusCode.{status}"


def test_a_stream_asks_for_a_key(guarded):
    def answers(headers: dict[str, str]) -> list[object]:
        found: Queue[tuple[object, object]] = Queue()
        with grpc.InferenceServerClient(f"127.0.0.1:{guarded.server.grpc_port}") as client:
            client.start_stream(lambda result, error: found.put((result, error)), headers=headers)
            # It may be refused before there is anything to ask.
            with suppress(InferenceServerException):
                client.async_stream_infer("digits", [tensor()])
            first = found.get(timeout=60)
            client.stop_stream()
        return list(first)

    result, error = answers({"x-api-key": guarded.tokens["predict"]})
    assert error is None
    assert result.as_numpy("output0") is not None
    _, error = answers({})
    assert "asks for a key" in str(error)
    _, error = answers({"x-api-key": guarded.tokens["cams"]})
    assert "is not for this model" in str(error)


def test_a_key_for_other_models(guarded, scene):
    headers = {"x-api-key": guarded.tokens["cams"]}
    url = guarded.server.url
    for path in (PREDICT, "/v2/models/digits/infer", "/v2/repository/models/digits/load"):
        answer = httpx.post(url + path, content=scene, headers=headers)
        assert answer.status_code == 403
        assert "it is for cam-*" in answer.text
    # These choose a model themselves, or have its name elsewhere than in the address.
    answer = httpx.post(url + "/v1/vision/custom/digits", files={"image": scene}, headers=headers)
    assert answer.status_code == 403, answer.text
    assert "it is for cam-*" in answer.text
    answer = httpx.post(url + "/v1/vision/detection", files={"image": scene}, headers=headers)
    assert (answer.status_code, "no model that is ready" in answer.text) == (400, True)
    for path in ("/v1/models/digits", "/v1/models/digits/statistics", "/v2/models/digits"):
        assert httpx.get(url + path, headers=headers).status_code == 403
    answer = httpx.post(url + "/v1/models/cam-1/predict", content=scene, headers=headers)
    assert answer.status_code == 404
    with grpc.InferenceServerClient(f"127.0.0.1:{guarded.server.grpc_port}") as client:
        with pytest.raises(InferenceServerException, match="is not for this model"):
            client.infer("digits", [tensor()], headers=headers)
        with pytest.raises(InferenceServerException, match="is not for this model"):
            client.get_model_metadata("digits", headers=headers)


def test_a_password_is_a_key(guarded):
    """As curl --user and Label Studio send one."""
    url, token = guarded.server.url + "/v1/keys/self", guarded.tokens["predict"]
    assert httpx.get(url, auth=("anybody", token)).json()["name"] == "predict"
    assert httpx.get(url, auth=("anybody", "wrong")).status_code == 401
    assert httpx.get(url, headers={"authorization": "Basic %%"}).status_code == 401


def test_a_key_tells_of_itself_and_is_named_in_the_log(guarded):
    headers = {"authorization": f"bearer {guarded.tokens['cams']}", "x-request-id": "own-key"}
    own = httpx.get(guarded.server.url + "/v1/keys/self", headers=headers).json()
    assert own["name"] == "cams"
    assert own["models"] == ["cam-*"]
    assert own["expires"] is own["images_left"] is None
    until(lambda: "id=own-key key=cams\n" in guarded.server.log.read_text())
    headers = {"x-api-key": guarded.tokens["control"]}
    httpx.post(guarded.server.url + "/v2/logging", json={"log_info": True}, headers=headers)
    until(lambda: "by 127.0.0.1 with key control: 200" in guarded.server.log.read_text())


def test_no_key_is_in_the_command_line(guarded):
    listed = Path(f"/proc/{guarded.server.process.pid}/cmdline").read_bytes()
    assert not [token for token in guarded.tokens.values() if token.encode() in listed]


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
        until(lambda: "the keys from before hold on" in server.log.read_text())
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
    assert (code, "this server asks for a key" in told) == (1, True)
    monkeypatch.setenv("FOVEA_API_KEY", guarded.tokens["predict"])
    assert fovea(*predict)[0] == 0
    code, shown, told = fovea(*bench)
    assert code == 0, told
    assert json.loads(shown)["levels"][0]["errors"] == []
    with Client(url) as client:
        assert client.predict("digits", scene).detections
        assert guarded.tokens["predict"] not in repr(client) + repr(vars(client))
    with (
        Client(url, api_key=guarded.tokens["metrics"]) as client,
        pytest.raises(ServerError, match="lacks the scope 'predict'"),
    ):
        client.predict("digits", scene)
    with Client(url, api_key="") as client, pytest.raises(ServerError, match="asks for a key"):
        client.predict("digits", scene)
    own = {"Authorization": f"Bearer {guarded.tokens['cams']}"}
    with Client(url, headers=own) as client, pytest.raises(ServerError, match="cam-"):
        client.predict("digits", scene)

    async def asked() -> int:
        async with AsyncClient(url) as client:
            return len((await client.predict("digits", scene)).detections)

    assert asyncio.run(asked())


def test_a_file_that_is_none_ends_the_start(fovea, demo_repository, tmp_path):
    code, _, told = fovea("serve", demo_repository, f"--keys={tmp_path / 'keys.json'}")
    assert code == 2
    assert "fovea key add NAME" in told


@pytest.fixture
def patterned(demo_repository, serve, tmp_path):
    """A server with two models, and a key for one of them alone."""
    repository, file = tmp_path / "models", tmp_path / "keys.json"
    for name in ("cam-1", "hidden"):
        copy = shutil.copytree(demo_repository / "digits", repository / name)
        config = copy / "config.pbtxt"
        config.write_text(config.read_text().replace("digits", name))
    scopes = ("--scope", "predict,control")
    token = key("add", "cam", "--keys", file, "--model", "cam-*", *scopes)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--api=roboflow")
    return serve(repository, f"--keys={file}", *flags), {"x-api-key": token}, file


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
            with pytest.raises(InferenceServerException, match="is not for this model"):
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
            assert "the server's log says why" in answer.text
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
        with pytest.raises(InferenceServerException, match="is not for this model"):
            load()


def test_who_has_no_key_learns_no_name_of_a_model(patterned, scene):
    server, _, _ = patterned
    for path in ("/v2/models/nope/ready", "/v1/models/nope/ready", "/nope/1", "/infer/x"):
        for body in (b"", scene):
            answer = httpx.request("POST" if body else "GET", server.url + path, content=body)
            assert "hidden" not in answer.text, path


def test_a_key_that_ends_is_out_of_an_open_stream(patterned):
    server, headers, file = patterned
    found: Queue[tuple[object, object]] = Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: found.put((result, error)), headers=headers)
        client.async_stream_infer("cam-1", [tensor()])
        assert found.get(timeout=60)[1] is None
        key("rm", "cam", "--keys", file)
        time.sleep(2)
        client.async_stream_infer("cam-1", [tensor()])
        assert "is not known here" in str(found.get(timeout=60)[1])
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
    until(
        lambda: (
            httpx.post(
                url, json={"model_id": "a", "image": {"type": "base64", "value": ""}}
            ).status_code
            == 401
        )
    )
