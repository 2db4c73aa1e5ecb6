"""Every route that takes JSON refuses too much of it before it is parsed."""

import asyncio
import json

import httpx
import orjson
import pytest
from tests.keyed import key
from tests.serving import start_server

from fovea_server.json_text import MAX_OF_STRANGERS, MAX_OF_TENSORS, MOST

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}
FLAGS = (
    *("--api=roboflow", "--api=label-studio", "--api=deepstack"),
    *("--model-control-mode=explicit", "--load-model=digits"),
)


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    running = start_server(demo_repository, tmp_path_factory.mktemp("log"), FLAGS)
    yield running
    assert "Traceback" not in running.log.read_text()
    assert running.stop() == 0


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def asking(demo_repository, keys, tmp_path_factory):
    """A server that asks for keys, and a key."""
    given = key("add", "camera", "--keys", keys)
    flags = (*FLAGS, f"--keys={keys}")
    running = start_server(demo_repository, tmp_path_factory.mktemp("log"), flags)
    yield running, given
    assert running.stop() == 0


def lists(weight: int) -> bytes:
    return b'{"images":[' + b"[]," * (weight // 7) + b"[]]}"


@pytest.mark.parametrize("body", [lists(MOST), b"[" + b"{}," * (MOST // 7) + b"1]"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/digits/predict",
        "/v1/models/digits/predict/json",
        "/v1/models/digits/annotate",
        "/v1/models/digits/embed",
        "/v1/models/digits/shadow",
        "/v1/models/digits/promote",
        "/v1/models/digits/rollback",
        "/v1/streams",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/repository/index",
        "/v2/repository/models/digits/load",
        "/v2/repository/models/digits/unload",
        "/infer/object_detection",
        "/model/add",
        "/model/remove",
        "/setup",
        "/validate",
        "/predict",
        "/webhook",
    ],
)
def test_values_have_a_bound_on_every_route(server, path, body):
    method = "PUT" if path.endswith("/shadow") else "POST"
    answer = httpx.request(method, server.url + path, content=body, headers=JSON, timeout=120)
    status = 400 if path.startswith("/v2/") else 413
    assert (answer.status_code, "too many values" in answer.text) == (status, True), answer.text


@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_tensors_have_a_bound_too(server, path):
    url = f"{server.url}/v2/models/digits/{path}"
    answer = httpx.post(url, content=lists(MAX_OF_TENSORS), headers=JSON, timeout=120)
    assert "too many values" in answer.text
    # An input for each of thousands is an error that is found at once.
    one = b'{"name":"images","datatype":"FP32","shape":[1,1],"data":[1]}'
    body = b'{"inputs":[' + b",".join([one] * 40_000) + b"]}"
    answer = httpx.post(url, content=body, headers=JSON, timeout=120)
    assert 400 <= answer.status_code <= 500


def test_a_configuration_has_a_bound(server):
    inner = json.dumps({"parameters": {"config": lists(MOST).decode()}})
    url = f"{server.url}/v2/repository/models/digits/load"
    answer = httpx.post(url, content=inner, headers=JSON, timeout=120)
    assert (answer.status_code, "too many values" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize("path", ["/infer/object_detection", "/model/add"])
def test_who_has_no_key_yet_may_send_less(asking, path):
    server, given = asking
    keyless = httpx.post(server.url + path, content=lists(MAX_OF_STRANGERS), headers=JSON)
    assert (keyless.status_code, "too many values" in keyless.text) == (413, True)
    body = lists(MAX_OF_STRANGERS)
    known = httpx.post(server.url + path, content=body, headers={**JSON, "X-API-Key": given})
    assert "too many values" not in known.text


def test_a_first_message_of_a_socket_has_a_bound(asking):
    websockets = pytest.importorskip("websockets")
    server, _ = asking

    async def run() -> str:
        url = f"ws://127.0.0.1:{server.port}/v1/models/digits/stream"
        origin = f"http://127.0.0.1:{server.port}"
        async with websockets.connect(url, origin=origin) as socket:
            await socket.send("[" * 4000)
            return str(orjson.loads(await socket.recv())["error"]["code"])

    assert asyncio.run(run()) == "unauthenticated"
