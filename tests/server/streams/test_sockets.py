"""Frames over WebSockets, on real ports: clients, and raw sockets that misbehave."""

import json
import shutil
import socket
import struct
import threading
from contextlib import contextmanager, suppress

import cv2
import httpx
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.keyed import key, until
from tests.server.streams.conftest import resident
from tests.serving import start_server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

JPEG = (DEMO / "scene-1.jpg").read_bytes()
OTHER = (DEMO / "scene-2.jpg").read_bytes()
STREAM = "/v1/models/digits/stream"
LIMIT = 2_000_000
HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
# Waits are shorter, and there are fewer connections.
HASTY = (
    "import fovea_server.streams.sockets.protocol as p, fovea_server.streams.sockets.frames as f;"
    "import fovea_server.streams.sockets.socket as s;"
    "p.PING_S = 0.5; f.IDLE_S = 5.0; s.MAX_SOCKETS = 8; s.MAX_KEYLESS = 1; s.KEY_WAIT_S = 1.0;"
    "from fovea_server.cli.main import main; main()"
)
BARE = "import sys; sys.modules['websockets'] = None;from fovea_server.cli.main import main; main()"


@pytest.fixture(scope="module")
def repository(demo_repository, tmp_path_factory):
    copy = tmp_path_factory.mktemp("sockets") / "repository"
    shutil.copytree(demo_repository, copy)
    return copy


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    flags = ["--http-max-input-size", str(LIMIT), "--max-held-mb", "12"]
    flags += ["--model-control-mode", "explicit", "--load-model", "digits", "--max-megapixels", "9"]
    running = start_server(repository, tmp_path_factory.mktemp("log"), flags)
    yield running
    assert running.stop() == 0
    assert " ERROR " not in running.log.read_text()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {"good": [], "other": ["--model", "else*"], "slow": ["--rate", "2/m"], "gone": []}
    return file, {name: key("add", name, "--keys", file, *more) for name, more in made.items()}


@pytest.fixture(scope="module")
def keyed(demo_repository, keys, tmp_path_factory):
    flags, program = ["--keys", str(keys[0]), "--body-timeout-s", "2"], ("-c", HASTY)
    folder = tmp_path_factory.mktemp("log")
    running = start_server(demo_repository, folder, flags, program=program)
    yield running
    assert running.stop() == 0
    text = running.log.read_text()
    assert "status=101" in text
    assert not [name for name, secret in keys[1].items() if secret in text]


@contextmanager
def opened(server, query="", path=STREAM, **how):
    """A connection, and what the server said first."""
    with connect(f"ws://127.0.0.1:{server.port}{path}{query}", max_size=None, **how) as line:
        yield line, json.loads(line.recv(20))


def answer(line):
    return json.loads(line.recv(60))


def refusal(server, query="", path=STREAM, **how):
    with pytest.raises(InvalidStatus) as refused, opened(server, query, path, **how):
        pass
    response = refused.value.response
    return response.status_code, json.loads(response.body)["error"]


def ending(line):
    """Read a connection to its end; return the code, the reason and the messages before."""
    said = []
    try:
        while True:
            said.append(answer(line))
    except ConnectionClosed as ended:
        return ended.rcvd.code, ended.rcvd.reason, said


def posted(server, image=JPEG, **options):
    address = server.predict_url("digits")
    answered = httpx.post(address, content=image, params=options, timeout=60)
    return answered.status_code, answered.json()


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
        "x" * 9000: "this is text",
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
        ("?track=bytetrack&frame=3", STREAM, 422, "leave frame out"),
        ("?track=none", STREAM, 422, "bytetrack"),
        ("?stream_id=a", STREAM, 422, "add track"),
        ("?timeout_ms=-1", STREAM, 422, "milliseconds"),
    ],
)
def test_what_is_wrong_is_told_before_the_connection(server, query, path, status, words):
    found, error = refusal(server, query, path)
    assert (found, words in error["message"]) == (status, True), error


def test_requests_that_are_none(server):
    plain = httpx.get(f"{server.url}{STREAM}")
    assert (plain.status_code, plain.headers["upgrade"]) == (426, "websocket")
    assert "fovea_client and fovea.js have stream()" in plain.json()["error"]["message"]
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


def test_a_slow_model_slows_a_sender_that_ignores_the_credits(server):
    """Its frames are cut into tiles, and sent as fast as TCP takes them."""
    image = cv2.imdecode(np.frombuffer(JPEG, np.uint8), 1)
    frame = cv2.imencode(".bmp", image)[1].tobytes()
    before, count = resident(server), 120
    # A client that is not read has no answers to its pings, and would give up.
    with opened(server, "?tile=128&conf=0.9", ping_interval=None) as (line, _):
        began = threading.Event()
        sent = []

        def send():
            with suppress(ConnectionClosed):
                for _ in range(count):
                    line.send(frame)
                    sent.append(None)
                    began.set()

        sender = threading.Thread(target=send)
        sender.start()
        assert began.wait(120)
        found = [answer(line)["frame"] for _ in range(4)]
        # Of the rest, all but what lies in the buffers of both ends is not sent.
        assert len(sent) < count
        assert resident(server) - before < 150
        found += [answer(line)["frame"] for _ in range(4, 12)]
        assert found == list(range(12))
        line.socket.shutdown(socket.SHUT_RDWR)
        sender.join(20)


def raw(server, secret="", room=None):
    """A connection that does nothing by itself."""
    line = socket.socket()
    if room is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    line.settimeout(120)
    line.connect(("127.0.0.1", server.port))
    head = HANDSHAKE.format(path=STREAM).replace("\r\n", f"\r\nX-API-Key: {secret}\r\n", 1)
    line.sendall(head.encode())
    assert line.recv(12) == b"HTTP/1.1 101"
    return line


def binary(payload):
    """A message; its mask changes nothing."""
    return b"\x82\xfe" + struct.pack("!HI", len(payload), 0) + payload


def said_by(line):
    """All that the server says until it closes."""
    said = b""
    with suppress(ConnectionResetError):
        while piece := line.recv(65_536):
            said += piece
    line.close()
    return said


def test_what_all_connections_hold_is_bounded(server):
    """A message without room ends its connection, and all others go on."""
    lines, size = [raw(server) for _ in range(8)], LIMIT - 1000
    for line in lines:
        with suppress(ConnectionError):
            line.sendall(b"\x82\xff" + struct.pack("!QI", size, 0) + b"x" * (size - 5))
    told = struct.pack("!H", 1013)
    refused = 0
    for line in lines:
        text = b""
        try:
            line.sendall(b"xxxxx")
            while b'"frame":0' not in text and told not in text:
                text += line.recv(65_536)
            refused += told in text
        except ConnectionError:
            refused += 1
            continue
        if told not in text:
            line.sendall(binary(b"the next one"))
            while b'"frame":1' not in text:
                text += line.recv(65_536)
    assert 2 <= refused <= 7
    for line in lines:
        line.close()
    assert posted(server)[0] == 200


def test_thousands_of_tiny_frames_leave_the_server_to_others(server):
    """Each costs as much as a large one: a second of them took half a minute, of everybody."""
    line = raw(server)
    # Pings, pongs, and pieces of a message without a byte.
    line.sendall(b"\x02\x80\0\0\0\0")
    line.settimeout(1)
    with suppress(TimeoutError):
        for _ in range(100):
            line.sendall(b"\x89\x80\0\0\0\0\x8a\x80\0\0\0\0\x00\x80\0\0\0\0" * 3000)
    with httpx.Client(timeout=20) as other:
        for _ in range(10):
            assert other.get(f"{server.url}/v1/health/live").status_code == 200
    line.close()


def gone(line):
    """Return True if the server has closed a connection that is not read."""
    try:
        line.sendall(binary(b"x"))
    except (ConnectionError, TimeoutError) as error:
        return isinstance(error, ConnectionError)
    return False


def test_a_client_that_reads_nothing_is_cut_off(keyed, keys):
    before = resident(keyed)
    lines = [raw(keyed, keys[1]["good"], room=4096) for _ in range(2)]
    for line in lines:
        with suppress(OSError):
            line.settimeout(3)
            # Its own answers stop it: what is sent then waits in buffers, and nowhere else.
            for _ in range(3000):
                line.sendall(binary(JPEG[:100]) * 20)
    assert resident(keyed) - before < 60
    for line in lines:
        until(lambda line=line: gone(line))
        line.close()


HEAD_OF_60_KB = b"\x82\xfe" + struct.pack("!HI", 60_000, 0)
TOO_MUCH = b"\x82\xff" + struct.pack("!QI", LIMIT + 1, 0) + bytes(1000)
PIECES = b"".join(
    bytes([2 * (not n), 0xFE]) + struct.pack("!HI", 50_000, 0) + bytes(50_000) for n in range(41)
)
SLOW = b"did not arrive within 2 s"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (TOO_MUCH, struct.pack("!H", 1009)),
        (PIECES, struct.pack("!H", 1009)),
        (b"\x81\x82\0\0\0\0\xff\xff", struct.pack("!H", 1007) + b"the text is not UTF-8"),
        (b"GET / HTTP/1.1\r\n\r\n", b"\x88"),
        (b"\x82\x05plain", b"\x88"),
        (b"\xff\xff\xff\xff", b"\x88"),
        (b"\x88\x81\0\0\0\0x", b"\x88"),
    ],
    ids=["whole", "in pieces", "no UTF-8", "HTTP", "no mask", "noise", "a bad close"],
)
def test_a_message_that_is_none_ends_its_connection(server, sent, words):
    line = raw(server)
    with suppress(ConnectionError):
        line.sendall(sent)
    assert words in said_by(line)
    with opened(server) as (other, _):
        other.send(JPEG)
        assert answer(other)["frame"] == 0


@pytest.mark.parametrize(
    "begun",
    [HEAD_OF_60_KB + b"begun", b"\x02\x80\0\0\0\0", b"\x82"],
    ids=["a payload", "a piece", "a head"],
)
def test_a_message_that_comes_too_slowly(keyed, keys, begun):
    line = raw(keyed, keys[1]["good"])
    line.sendall(begun)
    if begun != b"\x02\x80\0\0\0\0":
        assert SLOW in said_by(line)
        return
    # Neither pings nor empty pieces hold it open.
    line.settimeout(0.05)
    said = b""
    with suppress(ConnectionError):
        while SLOW not in said:
            line.sendall(b"\x89\x80\0\0\0\0\x00\x80\0\0\0\0" * 100)
            with suppress(TimeoutError):
                said += line.recv(65_536)
    assert SLOW in said
    line.close()


def test_bytes_behind_the_request_are_no_messages(keyed, keys):
    """The connection is refused, and counts for nothing: more of them than may be open."""
    head = HANDSHAKE.replace("\r\n", f"\r\nX-API-Key: {keys[1]['good']}\r\n", 1)
    request = head.format(path=STREAM).encode()
    for sent in [request + binary(JPEG[:100])] * 5 + [request + request, request + b"G"]:
        line = socket.create_connection(("127.0.0.1", keyed.port), 30)
        line.sendall(sent)
        said = said_by(line)
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert b"once it is accepted (101)" in said
    raw(keyed, keys[1]["good"]).close()


def test_a_stop_answers_what_was_received(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path)
    with opened(server, "?tile=64") as (line, _), opened(server) as (quiet, _):
        for _ in range(5):
            line.send(JPEG)
        found = [answer(line)["frame"]]
        server.process.terminate()
        code, reason, said = ending(line)
        assert (code, reason) == (1012, "the server stops")
        assert found + [each["frame"] for each in said] == list(range(5))
        assert ending(quiet) == (1012, "the server stops", [])
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


# Keys, and a server that waits less


def bearer(secret):
    return {"additional_headers": {"Authorization": f"Bearer {secret}"}}


def test_keys_of_programs(keyed, keys):
    assert refusal(keyed)[0] == 401
    assert refusal(keyed, **bearer("no"))[0] == 401
    assert refusal(keyed, **bearer(keys[1]["other"]))[0] == 403
    head = {"X-API-Key": keys[1]["good"]}
    used = f"{keyed.url}/v1/keys/self"
    with opened(keyed, additional_headers=head) as (line, _):
        for _ in range(3):
            line.send(JPEG)
        assert [answer(line)["frame"] for _ in range(3)] == [0, 1, 2]
    assert httpx.get(used, headers=head).status_code == 200
    metrics = httpx.get(f"http://127.0.0.1:{keyed.metrics_port}/metrics", headers=head)
    assert metrics.status_code == 403


def test_the_key_of_a_page(keyed, keys):
    page = {"origin": keyed.url}
    address = f"ws://127.0.0.1:{keyed.port}{STREAM}"
    with connect(address, **page) as line:
        line.send(json.dumps({"api_key": keys[1]["good"]}))
        assert json.loads(line.recv(20))["model"] == "digits"
        line.send(JPEG)
        assert answer(line)["frame"] == 0
    for first, words in (
        (json.dumps({"api_key": "wrong"}), "not known here"),
        (JPEG, '{"api_key": KEY} as the first message'),
        (None, "no key came"),
    ):
        with connect(address, **page) as line:
            if first is not None:
                line.send(first)
            code, reason, said = ending(line)
            assert (code, reason) == (1008, "unauthenticated")
            assert words in said[0]["error"]["message"]
    with connect(address.replace("digits", "nobody"), **page) as line:
        line.send(json.dumps({"api_key": keys[1]["good"]}))
        assert ending(line)[:2] == (1008, "not_found")
    # Who waits for a key takes no place of others.
    with connect(address, **page):
        status, error = refusal(keyed, **page)
        assert (status, "wait for a key already" in error["message"]) == (429, True)
        with opened(keyed, **bearer(keys[1]["good"])) as (line, _):
            line.send(JPEG)
            assert answer(line)["frame"] == 0


def test_rates_are_charged_for_each_frame(keyed, keys):
    with opened(keyed, **bearer(keys[1]["slow"])) as (line, _):
        for _ in range(4):
            line.send(JPEG)
        found = [answer(line) for _ in range(4)]
        assert [each.get("status", 200) for each in found] == [200, 200, 429, 429]
        assert found[2]["error"]["code"] == "rate_limited"
        assert found[2]["retry_after_s"] > 1


def test_a_key_that_is_revoked_ends_the_connection(keyed, keys):
    with opened(keyed, **bearer(keys[1]["gone"])) as (line, _):
        line.send(JPEG)
        assert answer(line)["frame"] == 0
        key("rm", "gone", "--keys", keys[0])
        head = {"X-API-Key": keys[1]["gone"]}
        until(lambda: httpx.get(f"{keyed.url}{STREAM}", headers=head).status_code == 401)
        line.send(JPEG)
        code, reason, said = ending(line)
        assert (code, reason) == (1008, "unauthenticated")
        assert (said[0]["frame"], said[0]["status"]) == (1, 401)


def test_connections_are_bounded_and_end_when_they_are_idle(keyed, keys):
    good = bearer(keys[1]["good"])
    with opened(keyed, **good) as (idle, _), opened(keyed, **good), opened(keyed, **good):
        with opened(keyed, **good):
            status, error = refusal(keyed, **good)
            assert (status, "4 WebSockets of this client are open" in error["message"]) == (
                429,
                True,
            )
        # Pings are answered meanwhile.
        code, reason, said = ending(idle)
        assert (code, reason, said) == (1000, "no frame came for 5 s", [])
    # One that answers none is cut off.
    said = said_by(raw(keyed, keys[1]["good"]))
    assert b"\x89\x04" in said
    assert b"no frame came" not in said
