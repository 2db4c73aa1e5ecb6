"""The v2 protocol without a socket: request by request, and message by message."""

import asyncio
import gzip
import json
import zlib
from dataclasses import replace
from functools import partial

import httpx
import numpy as np
import pytest
from tests.server.http.conftest import Ask

from fovea_server.byte_budget import ByteBudget, too_slow
from fovea_server.http.call_middleware import CallMiddleware
from fovea_server.http.v2.routes import V2Route

pytestmark = pytest.mark.slow

X = {"name": "X", "shape": [1, 4], "datatype": "INT32"}
JSON = {"inputs": [{**X, "data": [1, 2, 3, 4]}]}


def infer(ask: Ask, **kwargs: object) -> httpx.Response:
    return ask("POST", "/v2/models/adder/infer", **kwargs)


def test_json(ask):
    answer = infer(ask, json=JSON, headers={"X-Request-Id": "mine"})
    assert answer.status_code == 200
    assert answer.json()["outputs"][0]["data"] == [2, 3, 4, 5]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "mine"


def binary(rows: int) -> tuple[bytes, dict[str, str], np.ndarray]:
    """An infer request with binary tensors both ways, its headers, and the values."""
    values = np.arange(4 * rows, dtype=np.int32)
    parameters = {"binary_data_size": values.nbytes}
    document = {
        "inputs": [{**X, "shape": [rows, 4], "parameters": parameters}],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(document).encode()
    return head + values.tobytes(), {"Inference-Header-Content-Length": str(len(head))}, values


def test_binary_tensors(ask):
    body, headers, values = binary(8)
    answer = infer(ask, content=body, headers=headers)
    assert answer.status_code == 200
    size = int(answer.headers["inference-header-content-length"])
    assert np.array_equal(np.frombuffer(answer.content[size:], np.int32), values + 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_compression_both_ways(ask, encoding):
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    answer = infer(ask, content=compress(json.dumps(JSON).encode()), headers=headers)
    if encoding == "br":
        assert answer.status_code == 501
        return
    assert answer.headers["content-encoding"] == encoding
    assert answer.json()["outputs"][0]["data"] == [2, 3, 4, 5]


def test_an_image(ask, scene):
    # No JSON in front: the body is the image alone.
    headers = {"Inference-Header-Content-Length": "0"}
    answer = ask("POST", "/v2/models/digits/infer", content=scene, headers=headers)
    assert answer.status_code == 200
    found = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    assert found["num_detections"][0] > 0


def test_generate_as_a_stream(ask):
    answer = ask("POST", "/v2/models/adder/generate_stream", json={"X": [1, 2, 3, 4]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    event = answer.text.removeprefix("data: ").removesuffix("\n\n")
    assert json.loads(event)["Y"] == [2, 3, 4, 5]
    refused = ask("POST", "/v2/models/adder/generate_stream", json={"X": ["a"]})
    assert refused.status_code == 500
    assert refused.text.startswith('data: {"error"')


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/adder", 200),
        ("HEAD", "/v2/models/adder", 200),
        ("OPTIONS", "/v2/models/adder", 200),
        ("DELETE", "/v2/models/adder", 405),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/elsewhere", 404),
        ("GET", "/v2/models/add%65r", 200),
    ],
)
def test_methods_and_addresses(ask, method, path, status):
    answer = ask(method, path)
    assert answer.status_code == status
    if method in ("HEAD", "OPTIONS"):
        assert answer.content == b""
    if status == 405:
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 500), (b"[]", 500), (b'{"inputs":[{}]}', 400), (b"\xff\xfe", 500)],
)
def test_bad_bodies(ask, body, status):
    # The statuses are Triton's.
    answer = infer(ask, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]
    # The connection still works.
    assert infer(ask, json=JSON).status_code == 200


async def _in_pieces(size: int):
    for _ in range(16):
        yield bytes(size // 16)


@pytest.mark.parametrize("declared", [True, False])
def test_bodies_over_the_limit(ask, service, declared):
    limit = service.settings.http_max_input_size
    size = limit + 16
    answer = infer(ask, content=bytes(size) if declared else _in_pieces(size))
    assert answer.status_code == 400
    assert f"exceeds the maximum allowed value of {limit} bytes" in answer.json()["error"]
    headers = {"Content-Encoding": "gzip"}
    assert infer(ask, content=gzip.compress(bytes(size)), headers=headers).status_code == 400


def only(route, around):
    """An application of one route; `around` gets each endpoint and its request."""

    class Around(V2Route):
        def route(self, request):
            super().route(request)
            endpoint = request.endpoint

            async def answer(service, request):
                return await around(partial(endpoint, service, request), request)

            request.endpoint = answer

    return CallMiddleware(Around(route).handle, route.traffic)


def asked(runner, app, *messages, path="/v2/models/adder/infer", **scope):
    """Send messages by hand, or errors; silence follows. The messages of the answer."""
    coming, sent = list(messages), []

    async def receive() -> dict[str, object]:
        if not coming:
            await asyncio.Event().wait()
        message = coming.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    made = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [],
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        **scope,
    }
    runner.run(app(made, receive, send))
    return sent


def test_a_body_that_does_not_arrive(runner, app, budget):
    piece = {"type": "http.request", "body": b"{", "more_body": True}
    start, body = asked(runner, app, piece, too_slow(0.5))
    assert start["status"] == 400
    assert (b"connection", b"close") in start["headers"]
    assert b"did not arrive within 0.5 s" in body["body"]
    assert budget.held == 0


def test_a_client_that_leaves_while_it_sends(runner, app, budget):
    piece = {"type": "http.request", "body": bytes(1000), "more_body": True}
    assert asked(runner, app, piece, {"type": "http.disconnect"}) == []
    assert budget.held == 0


def test_a_client_that_leaves_before_its_answer(runner, service, budget):
    started, cancelled = [], []

    async def slowly(endpoint, request):
        started.append(request)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request)
            raise

    body = {"type": "http.request", "body": b"{}"}
    assert asked(runner, only(service, slowly), body, {"type": "http.disconnect"}) == []
    assert started == cancelled != []
    assert budget.held == 0


def test_a_server_that_stops_before_the_answer(runner, service):
    async def stopped(endpoint, request):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    body = {"type": "http.request", "body": b"{}"}
    start, body = asked(runner, only(service, stopped), body)
    assert start["status"] == 503
    assert b"the server stopped" in body["body"]


def test_large_answers_are_counted(runner, service):
    budget = ByteBudget(200_000)
    held = []

    async def enlarged(endpoint, request):
        answer = await endpoint()
        held.append(budget.held)
        return replace(answer, body=[bytes(60_000), bytes(60_000)])

    app = only(replace(service, budget=budget), enlarged)
    sent = asked(runner, app, {"type": "http.request", "body": b""}, path="/v2", method="GET")
    assert sum(len(message.get("body", b"")) for message in sent) == 120_000
    assert budget.held == 0
    budget.count_answer(100_000)
    start, _ = asked(runner, app, {"type": "http.request", "body": b""}, path="/v2", method="GET")
    assert start["status"] == 503
    assert budget.held == 100_000
