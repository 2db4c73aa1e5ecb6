"""The senders, over real sockets. The server end is a double: it answers from a script.

What the real server says to it is in tests/e2e.
"""

import asyncio
import json
import os
import random
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from httpx import Response
from tests.certificates import make_pair
from tests.client.scripted_server import ScriptedServer

from fovea_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    FoveaClientError,
    QueueFull,
    ServerError,
    UnexpectedAnswer,
    _tensors,
    server_address,
)

Ask = Callable[..., Any]


def test_predict_sends_the_image_and_types_the_answer(server: ScriptedServer) -> None:
    with Client(server.url) as client:
        prediction = client.predict("digits", b"image", conf=0.5, version=1)
    assert [found.class_name for found in prediction.detections] == ["seven"]
    [(method, path, headers, body)] = server.requests
    assert (method, path) == ("POST", "/v1/models/digits/versions/1/predict?conf=0.5")
    assert headers["accept"] == "application/json"
    assert body == b"image"


def test_an_address_may_have_a_path_in_front(server: ScriptedServer) -> None:
    with Client(server.url + "/vision/") as client:
        client.predict("a/b", b"image")
    assert server.requests[0][1] == "/vision/v1/models/a%2Fb/predict"


def test_a_list_is_one_request(server: ScriptedServer) -> None:
    with Client(server.url) as client, pytest.raises(UnexpectedAnswer, match="2 images"):
        client.predict("digits", [b"one", b"two"])
    [(_, _, headers, body)] = server.requests
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    assert 0 < body.index(b"one") < body.index(b"two")


def test_annotate_asks_for_an_image(server: ScriptedServer) -> None:
    server.replies = [(200, {"Content-Type": "image/png"}, b"\x89PNG")]
    with Client(server.url) as client:
        drawn = client.annotate("digits", b"image", format="image/png", iou=0.4)
    assert drawn == b"\x89PNG"
    assert repr(drawn) == "<PNG of 4 bytes>"
    assert (drawn._repr_png_(), drawn._repr_jpeg_()) == (b"\x89PNG", None)
    assert server.requests[0][2]["accept"] == "image/png"


def test_a_file_to_search_by_is_read_beside_the_event_loop(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.replies = [(200, {}, b'{"images": [{"matches": []}]}')]
    file = tmp_path / "image.jpg"
    os.mkfifo(file)

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            asked = asyncio.create_task(client.search("reid", file, k=3, thumbnails=True))
            await asyncio.sleep(0)
            await asyncio.to_thread(file.write_bytes, b"image")
            assert await asked == ()

    asyncio.run(run())
    [(method, path, _, body)] = server.requests
    assert (method, path) == ("POST", "/v1/models/reid/search?k=3&thumbnails=true")
    assert body == b"image"


def test_ready(server: ScriptedServer) -> None:
    server.replies = [(200, {}, b""), (400, {}, b"")]
    with Client(server.url) as client:
        assert client.ready()
        assert not client.ready("digits")
    assert [path for _, path, _, _ in server.requests] == [
        "/v2/health/ready",
        "/v2/models/digits/ready",
    ]


def test_an_unknown_option_is_the_callers_mistake(server: ScriptedServer) -> None:
    with Client(server.url) as client, pytest.raises(TypeError, match=r"confidence.* conf\?"):
        client.predict("digits", b"image", confidence=0.5)  # type: ignore[call-arg]
    assert server.requests == []


def test_normalize_has_a_former_name(server: ScriptedServer, ask: Ask) -> None:
    former: dict[str, bool] = {"normalise": False}
    with pytest.warns(DeprecationWarning, match="normalize"):
        ask(server.url, "predict", "digits", b"image", options=former)
    assert server.requests[-1][1] == "/v1/models/digits/predict?normalize=false"
    server.replies = [(200, {}, b'{"texts": []}')]
    with pytest.warns(DeprecationWarning, match="normalize"):
        assert ask(server.url, "embed", "clip", ["a cat"], options=former) == ()
    assert json.loads(server.requests[-1][3]) == {"text": ["a cat"], "normalize": False}
    with pytest.raises(TypeError, match="not both"):
        ask(server.url, "predict", "digits", b"image", options=former | {"normalize": True})


def test_headers_go_with_every_request(server: ScriptedServer, ask: Ask) -> None:
    ask(server.url, "predict", "digits", b"image", headers={"Key": "secret"})
    ask(server.url, "ready", headers={"Key": "secret"})
    assert [headers["key"] for _, _, headers, _ in server.requests] == ["secret"] * 2


def test_a_slow_answer_is_a_failed_connection(server: ScriptedServer) -> None:
    server.delay_s = 0.5
    client = Client(server.url, timeout=0.1)
    with client, pytest.raises(ConnectionFailed, match=r"0\.1"):
        client.predict("digits", b"image")


def test_a_certificate_that_is_not_trusted_is_told(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = make_pair(tmp_path, "camera.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with Client(url) as client, pytest.raises(ConnectionFailed) as caught:
        client.predict("digits", b"image")
    assert str(caught.value).startswith(f"the certificate of {url} is not trusted (")
    assert "SSL_CERT_FILE" in str(caught.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with Client(url) as client:
        assert len(client.predict("digits", b"image").detections) == 1


def test_nobody_there_is_a_failed_connection() -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Client(url, retries=1) as client, pytest.raises(ConnectionFailed, match=url):
            client.ready()


def test_another_server_is_noticed(server: ScriptedServer) -> None:
    server.replies = [(200, {"Content-Type": "text/html"}, b"<title>Router login</title>")]
    with Client(server.url) as client:
        with pytest.raises(UnexpectedAnswer):
            client.predict("digits", b"image")
        with pytest.raises(UnexpectedAnswer):
            client.annotate("digits", b"image")


def test_every_error_has_the_one_base() -> None:
    assert issubclass(QueueFull, ServerError)
    for kind in (ServerError, ConnectionFailed, UnexpectedAnswer):
        assert issubclass(kind, FoveaClientError)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "", "http://h:port", "h:port"])
def test_a_bad_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not a valid URL"):
        Client(url)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("localhost", "http://localhost"),
        ("https://host/fovea/", "https://host/fovea"),
    ],
)
def test_an_address_without_a_scheme_is_of_http(typed: str, meant: str) -> None:
    assert server_address(typed) == meant


def test_the_port_of_grpc_is_named_and_not_tried_again() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            Client(f"http://127.0.0.1:{port}", retries=3) as client,
            pytest.raises(UnexpectedAnswer, match="gRPC"),
        ):
            client.models()
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"timeout": None},
        {"timeout": float("inf")},
        {"retries": -1},
        {"headers": {"Key": "a\nb"}},
        {"headers": {"Key": "ключ"}},
        {"headers": {"Kéy": "secret"}},
    ],
    ids=str,
)
def test_bad_settings_are_refused_at_once(ask: Ask, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings)).removesuffix("s")) as caught:
        ask("http://127.0.0.1:9", "ready", **settings)
    assert "ключ" not in str(caught.value)


def test_a_local_fault_is_not_blamed_on_the_server(server: ScriptedServer, ask: Ask) -> None:
    headers = {"Transfer-Encoding": "gzip"}  # which h11 does not do
    with pytest.raises(ConnectionFailed) as caught:
        ask(server.url, "predict", "digits", b"image", headers=headers)
    assert not caught.value.unanswered


def test_an_answer_that_drips_is_a_failed_connection(server: ScriptedServer, ask: Ask) -> None:
    server.drip_s = 0.2
    with pytest.raises(ConnectionFailed, match=r"0\.5") as caught:
        ask(server.url, "predict", "digits", b"image", timeout=0.5)
    assert caught.value.unanswered


# Requests of the asyncio client that are cancelled, or under way when it is closed.


def test_cancelled_requests_leave_the_client_in_order(server: ScriptedServer) -> None:
    moments = random.Random(0)

    async def run() -> None:
        async with AsyncClient(server.url, timeout=60) as client:
            for _ in range(300):
                task = asyncio.create_task(client.ready())
                await asyncio.sleep(moments.random() * 0.004)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert all(await asyncio.gather(*(client.ready() for _ in range(20))))

    asyncio.run(run())


def test_a_closed_client_sends_nothing_and_keeps_no_connection(server: ScriptedServer) -> None:
    server.delay_s = 0.1

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            asked = asyncio.create_task(client.ready())
            while not server.requests:
                await asyncio.sleep(0.01)
        assert await asked
        with pytest.raises(RuntimeError, match="is closed"):
            await client.ready()
        del asked, client

    asyncio.run(run())  # a socket that is left over is a ResourceWarning, which is an error
    assert len(server.requests) == 1


# Answers with tensors that are not what they should be.


def answer(datatype, shape, data, *, size=None, before=None):
    size = len(data) if size is None else size
    output = {"name": "out", "datatype": datatype, "shape": shape}
    output["parameters"] = {"binary_data_size": size}
    text = json.dumps({"model_name": "m", "outputs": [output]}).encode()
    before = str(len(text)) if before is None else before
    headers = {"inference-header-content-length": before}
    return Response(200, headers=headers, content=text + data)


def test_it_is_read():
    got = _tensors.outputs(answer("FP32", [1, 2], np.float32([1, 2]).tobytes()))
    assert got["out"].tolist() == [[1, 2]]
    strings = b"\1\0\0\0a\0\0\0\0"
    assert _tensors.outputs(answer("BYTES", [2], strings))["out"].tolist() == [b"a", b""]


@pytest.mark.parametrize(
    "response",
    [
        answer("FP32", [1, 2], b"1234567"),
        answer("FP32", [1, 2], b"1234"),
        answer("FP32", [1, 2], b"12345678", size=4),
        answer("FP32", [1], b"1234", size="4"),
        answer("FP32", [1], b"1234", size=-1),
        answer("FP32", [1], b"12345678", size=4),
        answer("FP32", ["a"], b"1234"),
        answer("FP31", [1], b"1234"),
        answer("BYTES", [1], b"\2\0\0\0a"),
        answer("BYTES", [1], b"\2\0"),
        answer("BYTES", [2], b"\1\0\0\0a"),
        answer("BF16", [1], b"123"),
        answer("FP32", [1], b"1234", before="many"),
        answer("FP32", [1], b"1234", before="9999"),
        answer("FP32", [1], b"1234", before="-4"),
        Response(200, content=b"<html>"),
        Response(200, content=b"[]"),
        Response(200, json={"outputs": [{"name": "out", "datatype": "FP32", "shape": [1]}]}),
    ],
    ids=str,
)
def test_what_is_no_answer_of_the_protocol_is_unexpected(response):
    with pytest.raises(UnexpectedAnswer):
        _tensors.outputs(response)


def test_errors_of_the_protocol_have_no_code():
    with pytest.raises(ServerError) as caught:
        _tensors.outputs(Response(400, json={"error": "unexpected shape"}))
    assert (caught.value.code, caught.value.message) == ("http_400", "unexpected shape")
    assert str(caught.value).count("400") == 1
