"""Limits, full queues, clients that leave, starting and stopping: a server over its life."""

import contextlib
import http.client
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from PIL import Image
from tests.forked import forked_fovea
from tests.keyed import until

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_server.http.v1.schemas import PredictAnswer

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_a_body_over_the_limit_is_refused_while_reading(demo_repository, serve):
    server = serve(demo_repository, "--http-max-input-size", "1000000")

    def endless():
        for _ in range(10_000):
            yield bytes(65536)

    url = server.predict_url("digits")
    with httpx.Client() as client:
        declared = client.post(url, content=bytes(2_000_000))
        assert (declared.status_code, declared.json()["error"]["code"]) == (413, "body_too_large")
    with httpx.Client() as client:
        chunked = client.post(url, content=endless())
        assert chunked.status_code == 413


def test_a_full_queue_says_when_to_come_back(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue", "4")
    url = server.predict_url("digits")
    assert httpx.post(url, files=[("f", scene)] * 5).status_code == 400, "it would never fit"
    refused, wrong = threading.Event(), []

    def insist() -> None:
        for _ in range(40):
            response = httpx.post(url, files=[("f", scene)] * 3, timeout=30)
            if response.status_code == 429:
                assert response.json()["error"]["code"] == "queue_full"
                assert int(response.headers["retry-after"]) >= 1
                refused.set()
            elif response.status_code != 200:
                wrong.append(response.text)
            if refused.is_set():
                return

    threads = [threading.Thread(target=insist) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert not wrong
    assert httpx.post(url, files=[("f", scene)] * 4).status_code == 200, "all places are free again"


def test_a_refused_body_is_not_read_for_ever(demo_server):
    def endless():
        while True:
            yield bytes(65536)

    with httpx.Client() as client:
        refused = client.post(demo_server.predict_url("nobody"), content=endless())
    assert refused.status_code == 404


def test_endless_headers_are_cut_off(demo_server):
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        while True:
            connection.sendall(b"X-Padding: " + b"x" * 8000 + b"\r\n")

    with (
        socket.create_connection(("127.0.0.1", demo_server.port), timeout=30) as connection,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        flood(connection)


def test_a_client_that_goes_away_frees_its_place(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue", "32")
    url = server.predict_url("digits")
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, files=[("f", scene)] * 32, timeout=httpx.Timeout(5, read=0.01))
        until = time.monotonic() + 60
        while httpx.post(url, files=[("f", scene)] * 30).status_code != 200:
            assert time.monotonic() < until, "the places were not given back"


@contextlib.contextmanager
def taken_on(server, body) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection whose request the server has begun to read, and the body that is still to go."""
    request = httpx.Request("POST", server.predict_url("digits"), **body)
    body = request.read()
    head = f"POST {request.url.raw_path.decode()} HTTP/1.1\r\nExpect: 100-continue\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        yield connection, body


def waiting(server) -> float:
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    return float(re.search(r"nv_inference_pending_request_count\{.*\} (\S+)", metrics)[1])


def answer_on(connection) -> tuple[int, dict]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


def test_sigterm_finishes_what_was_accepted(demo_repository, serve, scene):
    server = serve(demo_repository)
    with taken_on(server, {"files": [("f", scene)] * 40}) as (connection, body):
        connection.sendall(body[: len(body) // 2])
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.sendall(body[len(body) // 2 :])
        status, answer = answer_on(connection)
        assert status == 200
        assert len(answer["images"]) == 40
    assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_many_signals_to_stop_do_not_make_a_failed_stop(demo_repository, serve):
    server = serve(demo_repository)
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def large() -> bytes:
    """An image that takes the better part of a second to decode."""
    file = io.BytesIO()
    Image.new("RGB", (8000, 7500)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("sent", ["half", "all"])
@pytest.mark.parametrize("form", [True, False])
def test_what_outlasts_the_time_to_exit_is_told_so(
    demo_repository, serve, scene, large, sent, form
):
    server = serve(demo_repository, "--exit-timeout-secs", "1")
    request = {"files": {"f": scene}} if form else {"content": scene}
    with (
        taken_on(server, {"files": [("f", large)] * 48}) as (busy, before),
        taken_on(server, request) as (connection, body),
    ):
        busy.sendall(before)
        while waiting(server) < 40:
            time.sleep(0.01)
        connection.sendall(body if sent == "all" else body[: len(body) // 2])
        server.process.send_signal(signal.SIGTERM)
        # A small image that is there does not wait behind large ones.
        outlasting = (connection, busy) if sent == "half" else (busy,)
        if sent == "all":
            assert answer_on(connection)[0] == 200
        for each in outlasting:
            status, answer = answer_on(each)
            assert (status, answer["error"]["code"]) == (503, "shutting_down")
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_an_empty_repository_is_not_ready_and_says_so(tmp_path, serve):
    server = serve(tmp_path, wait=False)
    ready = f"{server.url}/v2/health/ready"
    until(lambda: "there is no model in" in httpx.get(ready).json()["reason"])
    assert httpx.get(ready).status_code == 400
    response = httpx.post(server.predict_url("digits"), content=b"x")
    assert response.status_code == 404
    assert "served models: none" in response.json()["error"]["message"]


def test_what_cannot_be_served_ends_at_once_with_a_sentence(demo_server, demo_repository, tmp_path):
    def serve(*arguments, code: int = 2) -> str:
        command = [*forked_fovea(), "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "is not a folder" in serve(tmp_path / "nowhere")
    for flag, port in (
        ("--http-port or --port", demo_server.port),
        ("--grpc-port", demo_server.grpc_port),
        ("--metrics-port", demo_server.metrics_port),
    ):
        taken = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", f"{flag.split()[0]}={port}")
        assert f"choose another with {flag}" in serve(demo_repository, *taken, code=1)
    # Before it is told, nothing was begun that would have to be given up.
    free = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    for wrong in ("--trace-config=level=TIMESTAMPS", "--http-server-key=key", "--grpc-use-ssl"):
        version, error = serve(demo_repository, *free, wrong).splitlines()
        assert "Fovea" in version
        assert error.startswith("error: ")


def test_a_damaged_model_leaves_the_others_serving(demo_repository, tmp_path, serve, scene):
    repository = tmp_path / "repository"
    shutil.copytree(demo_repository, repository)
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    server = serve(repository, wait=False)
    until = time.monotonic() + 60
    while httpx.get(f"{server.url}/v2/models/digits/ready").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    broken = httpx.post(server.predict_url("broken"), content=scene)
    assert (broken.status_code, broken.json()["error"]["code"]) == (503, "model_not_ready")
    ready = httpx.get(f"{server.url}/v2/health/ready")
    assert ready.status_code == 400
    assert "broken" in ready.json()["reason"]


def test_a_model_that_is_not_decoded_serves_tensors_and_says_so(shared, tmp_path, serve):
    source = shared / "models" / "mobilenetv2.onnx"
    build(BuildPlan(source, "classifier", tmp_path / "repository", family="tensors"))
    server = serve(tmp_path / "repository")
    image = (shared / "data" / "bus.jpg").read_bytes()
    answer = httpx.post(server.predict_url("classifier"), content=image, timeout=30).json()
    PredictAnswer.model_validate(answer, strict=True)
    result = answer["images"][0]
    assert answer["task"] == "tensors"
    assert "chosen by --head" in result["reason"]
    assert [t["shape"] for t in result["tensors"]] == [[1000]]
    drawn = httpx.post(
        server.predict_url("classifier"), content=image, headers={"Accept": "image/png"}
    )
    assert drawn.status_code == 400
