"""Frames over WebSockets, on real ports: how they are answered, refused and ended by a stop."""

import shutil
import socket
from contextlib import suppress

import cv2
import httpx
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.keyed import until
from tests.server.streams.sockets import (
    HANDSHAKE,
    JPEG,
    STREAM,
    answer,
    binary,
    ending,
    opened,
    posted,
    raw,
    refusal,
    said_by,
)
from tests.serving import start_server

pytestmark = pytest.mark.slow

OTHER = (DEMO / "scene-2.jpg").read_bytes()
LIMIT = 2_000_000
BARE = "import sys; sys.modules['websockets'] = None;from fovea_server.cli.main import main; main()"


@pytest.fixture(scope="module")
def repository(demo_repository, tmp_path_factory):
    copy = tmp_path_factory.mktemp("sockets") / "repository"
    shutil.copytree(demo_repository, copy)
    return copy


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    flags = ["--http-max-input-size", str(LIMIT), "--max-inflight-mb", "12"]
    flags += ["--model-control-mode", "explicit", "--load-model", "digits", "--max-megapixels", "9"]
    running = start_server(repository, tmp_path_factory.mktemp("log"), flags)
    yield running
    assert running.stop() == 0
    assert " ERROR " not in running.log.read_text()


def test_frames_are_answered_as_by_predict_and_in_order(server):
    frames = [JPEG, OTHER] * 10
    alone = {frame: posted(server, frame, conf=0.4)[1]["images"] for frame in (JPEG, OTHER)}
    with opened(server, "?conf=0.4") as (line, hello):
        assert hello == {"model": "digits", "in_flight": 8, "max_bytes": LIMIT}
        for frame in frames:
            line.send(frame)
        for number, frame in enumerate(frames):
            found = answer(line)
            assert (found["frame"], found["task"]) == (number, "detect")
            assert found["images"] == alone[frame]
            assert found["timing_ms"]["total"] > 0
    with opened(server) as (line, _):
        line.send(JPEG[at : at + 1000] for at in range(0, len(JPEG), 1000))
        assert answer(line)["images"] == posted(server)[1]["images"]
        assert line.ping().wait(120)
        line.send(JPEG[at : at + 1] for at in range(3000))
        assert answer(line)["error"]["code"] == "invalid_image"


def test_a_bad_frame_has_its_error_and_the_stream_goes_on(server):
    png = cv2.imencode(".png", np.zeros((4000, 4000), np.uint8))[1].tobytes()
    bad = {
        JPEG[: len(JPEG) // 2]: None,
        b"no image": None,
        png: None,
        b"": "the body is empty",
        "text": "send each image as a binary message",
        "x" * 9000: "the message is text",
    }
    with opened(server, "?timeout_ms=1") as (line, _):
        for _ in range(2):
            line.send(JPEG)
        assert [answer(line)["status"] for _ in range(2)] == [504, 504]
    with opened(server) as (line, _):
        for number, (frame, words) in enumerate(bad.items()):
            line.send(frame)
            found = answer(line)
            assert found.pop("frame") == 2 * number
            if words is None:
                status, document = posted(server, frame)
                assert found == {"status": status, **document}
            else:
                assert words in found["error"]["message"]
                assert 400 <= found["status"] < 500
            line.send(JPEG)
            assert answer(line)["images"][0]["detections"]


def test_ids_of_objects(server):
    def ids(found):
        return [each["track_id"] for each in found["images"][0]["detections"]]

    moved = [cv2.imdecode(np.frombuffer(JPEG, np.uint8), 1)] * 6
    frames = [
        cv2.imencode(".jpg", np.roll(frame, 3 * n, 1))[1].tobytes() for n, frame in enumerate(moved)
    ]
    given = {"track": "bytetrack", "stream_id": "posted"}
    wanted = [ids(posted(server, frame, **given, frame=n)[1]) for n, frame in enumerate(frames)]
    for query in ("&stream_id=mine", ""):
        with opened(server, f"?track=bytetrack{query}") as (line, hello):
            assert (hello["stream_id"] == "mine") == bool(query)
            for frame in [*frames[:3], b"bad", *frames[3:]]:
                line.send(frame)
            found = [answer(line) for _ in range(7)]
            assert [ids(each) for each in found if "error" not in each] == wanted

    # They end with the connection that named the stream.
    def gauge(sample):
        metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
        return int(metrics.partition(f"{sample} ")[2].split()[0])

    def tracked():
        return gauge('fovea_tracked_streams{model="digits"}')

    with opened(server, "?track=sort") as (line, _), opened(server, "?track=sort&stream_id=own"):
        line.send(JPEG)
        assert answer(line)["frame"] == 0
        before = tracked()
        until(lambda: gauge('fovea_websockets{carries="frames"}') == 2)
    until(lambda: tracked() == before - 1)


@pytest.mark.parametrize(
    ("query", "path", "status", "words"),
    [
        ("", "/v1/models/nobody/stream", 404, "nobody"),
        ("", "/v1/models/digits/versions/9/stream", 404, "version"),
        ("", "/v1/models/digits/versions/x/stream", 404, "whole numbers"),
        ("", "/v1/models/digits", 404, "no WebSocket at"),
        ("?confidence=1", STREAM, 422, "did you mean 'conf'"),
        ("?conf=2", STREAM, 422, "conf is 2"),
        ("?classes=unheard", STREAM, 422, "unheard"),
        ("?top_k=3", STREAM, 422, "top_k"),
        ("?track=bytetrack&frame=3", STREAM, 422, "remove the option frame"),
        ("?track=none", STREAM, 422, "bytetrack"),
        ("?stream_id=a", STREAM, 422, "need track"),
        ("?timeout_ms=-1", STREAM, 422, "milliseconds"),
    ],
)
def test_what_is_wrong_is_told_before_the_connection(server, query, path, status, words):
    found, error = refusal(server, query, path)
    assert (found, words in error["message"]) == (status, True), error


def test_requests_that_are_none(server):
    plain = httpx.get(f"{server.url}{STREAM}")
    assert (plain.status_code, plain.headers["upgrade"]) == (426, "websocket")
    assert "accepts only WebSockets" in plain.json()["error"]["message"]
    head = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key, other = (("Sec-WebSocket-Key", each * 22 + "==") for each in "Ag")
    for keys in ([("Sec-WebSocket-Key", "AAAA")], [key, other], [key, key]):
        wrong = httpx.get(f"{server.url}{STREAM}", headers=[*head.items(), *keys])
        assert (wrong.status_code, "key" in wrong.text.lower()) == (400, True)
    old = head | dict([key]) | {"Sec-WebSocket-Version": "8"}
    wrong = httpx.get(f"{server.url}{STREAM}", headers=old)
    assert (wrong.status_code, wrong.headers["sec-websocket-version"]) == (426, "13")
    assert httpx.post(f"{server.url}{STREAM}").status_code == 405
    line = socket.create_connection(("127.0.0.1", server.port), 30)
    line.sendall(HANDSHAKE.replace("HTTP/1.1", "HTTP/1.0").format(path=STREAM).encode())
    assert said_by(line).startswith(b"HTTP/1.1 426 ")
    # Longer than `websockets` takes.
    for more in ("x: y\r\n" * 200, f"x: {'y' * 9000}\r\n"):
        line = socket.create_connection(("127.0.0.1", server.port), 30)
        line.sendall(HANDSHAKE.replace("\r\n\r\n", f"\r\n{more}\r\n").format(path=STREAM).encode())
        assert said_by(line).startswith(b"HTTP/1.1 4")


def test_pages_of_other_sites(server):
    status, error = refusal(server, origin="https://evil.example")
    assert (status, error["code"]) == (403, "foreign_request")
    with opened(server, origin=server.url) as (line, _):
        line.send('{"api_key": "which nobody asks for"}')
        line.send(JPEG)
        assert answer(line)["frame"] == 0


def test_a_model_is_loaded_again_under_a_connection(server):
    control = f"{server.url}/v2/repository/models/digits"
    with opened(server) as (line, _):
        line.send(JPEG)
        before = answer(line)
        assert httpx.post(f"{control}/load", timeout=60).status_code == 200
        line.send(JPEG)
        assert answer(line)["images"] == before["images"]
        assert httpx.post(f"{control}/unload", timeout=60).status_code == 200
        until(lambda: httpx.get(f"{server.url}/v1/models/digits/ready").status_code != 200)
        line.send(JPEG)
        assert answer(line)["status"] in (404, 503)
        status, error = refusal(server)
        assert (status, error["code"]) == (503, "model_not_ready")
        assert httpx.post(f"{control}/load", timeout=60).status_code == 200
        line.send(JPEG)
        assert answer(line)["images"] == before["images"]


def test_a_stop_answers_what_was_received(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path)
    with opened(server, "?tile=64") as (line, _), opened(server) as (quiet, _):
        for _ in range(5):
            line.send(JPEG)
        # Read behind the frames: they were all received.
        assert line.ping().wait(120)
        found = [answer(line)["frame"]]
        server.process.terminate()
        code, reason, said = ending(line)
        assert (code, reason) == (1012, "the server is stopping")
        assert found + [each["frame"] for each in said] == list(range(5))
        assert ending(quiet) == (1012, "the server is stopping", [])
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_a_stop_waits_for_no_client_that_does_not_read(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path, ["--body-timeout-s", "300"])
    line = raw(server, room=4096)
    line.settimeout(3)
    with suppress(OSError):
        while True:
            line.sendall(binary(b"no image") * 100)
    assert server.stop() == 0
    assert "timeout graceful shutdown exceeded" not in server.log.read_text()
    line.close()


def test_without_the_package(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path, program=("-c", BARE))
    status, error = refusal(server)
    assert (status, error["code"]) == (501, "unsupported")
    assert "fovea-serve[streams]" in error["message"]
    assert posted(server)[0] == 200
    assert server.stop() == 0
