"""Clients that send slowly, or next to nothing: those that send on are waited for, all others take
nothing from anybody, on any port.
"""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from tests import http2
from tests.keyed import until
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.slow

# In two seconds, 16 KiB must come: a busy machine may well hold up a sender for half of one.
ENOUGH, TOO_LITTLE, EVERY_S = 2500, 200, 0.1
PREDICT = "/v1/models/digits/predict"
FORM = "multipart/form-data; boundary=b"
LATE = b"did not arrive within 2 s, and was slower than 8 KiB/s"


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    server = start_server(demo_repository, tmp_path_factory.mktemp("slow"), ("--body-timeout-s=2",))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]
        time.sleep(EVERY_S)


def post(kind: str = "image/jpeg", **headers: object) -> bytes:
    given = {"Host": "localhost", "Content-Type": kind} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"POST {PREDICT} HTTP/1.1\r\n{lines}\r\n".encode()


def answer(port: int, size: int, kind: str, sent: Iterator[bytes]) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(post(kind, Content_Length=size, Connection="close"))
        try:
            for piece in sent:
                connection.sendall(piece)
            return b"".join(iter(lambda: connection.recv(65_536), b""))
        except ConnectionError:
            return connection.recv(65_536)


@pytest.mark.parametrize("kind", ["image/jpeg", FORM])
def test_a_slow_line_is_waited_for(server, scene, kind):
    part = b'--b\r\nContent-Disposition: form-data; name="images"; filename="0"\r\n\r\n'
    body = part + scene + b"\r\n--b--\r\n" if kind == FORM else scene
    began = time.monotonic()
    received = answer(server.port, len(body), kind, pieces(body, ENOUGH))
    assert time.monotonic() - began > 1
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"detections"' in received


@pytest.mark.parametrize("size", [TOO_LITTLE, 0])
def test_one_that_trickles_or_stops_is_given_up(server, scene, size):
    begun, rest = scene[: 4 * ENOUGH], scene[4 * ENOUGH :]
    sent = itertools.chain(pieces(begun, ENOUGH), pieces(rest, size) if size else ())
    received = answer(server.port, len(scene), "image/jpeg", sent)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert LATE in received


@pytest.mark.parametrize("size", [60_000, TOO_LITTLE])
def test_messages_of_grpc_follow_the_same_rule(server, size):
    asked = messages.ModelInferRequest(model_name="nobody")
    asked.inputs.add(name="images", datatype="FP32", shape=(1, 3, 320, 320))
    asked.raw_input_contents.append(np.zeros((1, 3, 320, 320), np.float32).tobytes())
    message = asked.SerializeToString()
    with http2.connected(server.grpc_port) as connection:
        sender = http2.Sender(connection, "/inference.GRPCInferenceService/ModelInfer")
        began = time.monotonic()
        for piece in pieces(http2.begun_message(len(message), 0) + message, size):
            sender.send(piece)
            if sender.ended or time.monotonic() > began + 10:
                break
        while not sender.ended:
            sender.receive()
    assert time.monotonic() - began > 0.5
    assert (LATE in sender.answered) == (size == TOO_LITTLE)


@pytest.mark.parametrize("port", ["port", "metrics_port"])
def test_connections_without_a_head_are_closed(server, port):
    def closes(sent: bytes) -> bool:
        address = "127.0.0.1", getattr(server, port)
        with socket.create_connection(address, timeout=40) as connection:
            connection.sendall(sent)
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass
            return True

    with ThreadPoolExecutor(2) as pool:
        half = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
        assert all(pool.map(closes, (b"", half)))


def test_clients_that_leave_right_behind_their_bodies_leave_nothing_held(server):
    sizes, before = range(140_000, 300_000, 20_000), server.log.read_text().count(PREDICT)
    for size in sizes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(post(Content_Length=size) + bytes(size))
    until(lambda: server.log.read_text().count(PREDICT) - before == len(sizes))
    until(lambda: server.metric("fovea_inflight_bytes") == 0)


def test_chunks_of_one_byte_hold_up_nobody(server):
    # Whole at first, so that the server finds much to read at once.
    sent = post(Transfer_Encoding="chunked") + b"1\r\nx\r\n" * 1_500_000 + b"0\r\n\r\n"
    got: list[bytes] = []

    def send() -> None:
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection,
            contextlib.suppress(OSError),
        ):
            with contextlib.suppress(OSError):
                connection.sendall(sent)
            got.append(connection.recv(4096))

    sender = threading.Thread(target=send)
    with httpx.Client(timeout=120) as client:
        sender.start()
        while sender.is_alive():
            assert client.get(f"{server.url}/v2/health/live").is_success
            time.sleep(0.02)
    sender.join()
    # They are refused, and not parsed: a microsecond for each would be a second and a half.
    assert not got or b"4096" in got[0]
