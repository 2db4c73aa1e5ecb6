"""Bodies over poor lines arrive, if slowly; those that stop, or only trickle, are given up."""

import itertools
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests import http2
from tests.serving import start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.slow

# In two seconds, 16 KiB must come: a busy machine may well hold up a sender for half of one.
FLAGS = ("--body-timeout-s=2",)
ENOUGH, TOO_LITTLE = 2500, 200
EVERY_S = 0.1


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    server = start_server(demo_repository, tmp_path_factory.mktemp("slow"), FLAGS)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]
        time.sleep(EVERY_S)


def answer(port: int, body: bytes, kind: str, sent: Iterator[bytes]) -> bytes:
    head = (
        f"POST /v1/models/digits/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode())
        try:
            for piece in sent:
                connection.sendall(piece)
            received = b"".join(iter(lambda: connection.recv(65_536), b""))
        except ConnectionError:
            received = connection.recv(65_536)
    return received


@pytest.mark.parametrize("kind", ["image/jpeg", "multipart/form-data; boundary=b"])
def test_a_slow_line_is_waited_for(server, scene, kind):
    part = (
        b'--b\r\nContent-Disposition: form-data; name="images"; filename="0"\r\n\r\n'
        + scene
        + b"\r\n--b--\r\n"
    )
    body = part if kind.startswith("multipart") else scene
    began = time.monotonic()
    received = answer(server.port, body, kind, pieces(body, ENOUGH))
    assert time.monotonic() - began > 1
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"detections"' in received


@pytest.mark.parametrize("size", [TOO_LITTLE, 0])
def test_one_that_trickles_or_stops_is_given_up(server, scene, size):
    begun, rest = scene[: 4 * ENOUGH], scene[4 * ENOUGH :]
    sent = itertools.chain(pieces(begun, ENOUGH), pieces(rest, size) if size else ())
    received = answer(server.port, scene, "image/jpeg", sent)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"did not arrive within 2 s, nor with 8 KiB/s" in received


def infer_request() -> bytes:
    """A large one, with a small answer."""
    message = messages.ModelInferRequest(model_name="nobody")
    message.inputs.add(name="images", datatype="FP32", shape=(1, 3, 320, 320))
    message.raw_input_contents.append(np.zeros((1, 3, 320, 320), np.float32).tobytes())
    return message.SerializeToString()


@pytest.mark.parametrize("size", [60_000, TOO_LITTLE])
def test_messages_of_grpc_follow_the_same_rule(server, size):
    message = infer_request()
    sent = http2.begun_message(len(message), 0) + message
    with http2.connected(server.grpc_port) as connection:
        sender = http2.Sender(connection, "/inference.GRPCInferenceService/ModelInfer")
        began = time.monotonic()
        for piece in pieces(sent, size):
            sender.send(piece)
            if sender.ended or time.monotonic() > began + 10:
                break
        while not sender.ended:
            sender.receive()
    assert time.monotonic() - began > 0.5
    late = b"did not arrive within 2 s, nor with 8 KiB/s" in sender.answered
    assert late == (size == TOO_LITTLE)
