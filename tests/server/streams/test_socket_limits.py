"""Sockets that misbehave: they send too much or too slowly, or read nothing."""

import socket
import struct
import threading
import time
from contextlib import suppress

import cv2
import httpx
import numpy as np
import pytest
from tests.keyed import until
from tests.server.streams.sockets import (
    HANDSHAKE,
    JPEG,
    STREAM,
    answer,
    binary,
    opened,
    posted,
    raw,
    said_by,
)
from tests.serving import start_server
from websockets.exceptions import ConnectionClosed

pytestmark = pytest.mark.slow

LIMIT = 2_000_000
HASTY = (
    "import fovea_server.streams.sockets.protocol as p, fovea_server.streams.sockets.socket as s;"
    "p._LOOK_S = 3.0; s.MAX_SOCKETS = 8;"
    "from fovea_server.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    # A busy machine may send a message slowly.
    flags = ["--http-max-input-size", str(LIMIT), "--max-inflight-mb", "12", "--body-timeout-s=300"]
    running = start_server(demo_repository, tmp_path_factory.mktemp("log"), flags)
    yield running
    assert running.stop() == 0
    assert " ERROR " not in running.log.read_text()


@pytest.fixture(scope="module")
def hasty(demo_repository, tmp_path_factory):
    """A server that waits two seconds for a client, looks seldom, and has few places."""
    flags, program = ["--body-timeout-s", "2"], ("-c", HASTY)
    folder = tmp_path_factory.mktemp("log")
    running = start_server(demo_repository, folder, flags, program=program)
    yield running
    assert running.stop() == 0
    assert " ERROR " not in running.log.read_text()


def test_a_slow_model_slows_a_sender_that_ignores_the_credits(server):
    """Its frames are cut into tiles, and sent as fast as TCP takes them."""
    image = cv2.imdecode(np.frombuffer(JPEG, np.uint8), 1)
    frame = cv2.imencode(".bmp", image)[1].tobytes()
    before, count = server.memory_mb(), 120
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
        assert server.memory_mb() - before < 150
        found += [answer(line)["frame"] for _ in range(4, 12)]
        assert found == list(range(12))
        line.socket.shutdown(socket.SHUT_RDWR)
        sender.join(20)


def test_what_all_connections_hold_is_bounded(server):
    """A message without room ends its connection, and all others go on."""
    # An earlier test's messages would fill the budget.
    until(lambda: server.metric("fovea_inflight_bytes") == 0)
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


def test_a_client_that_reads_nothing_is_cut_off(hasty):
    """Its answers stop it: what it sends then waits in its own buffers, and is soon too much."""
    before, frames = hasty.memory_mb(), binary(JPEG[:100]) * 20_000
    for _ in range(2):
        line = raw(hasty, room=4096)
        with pytest.raises(ConnectionError):
            line.sendall(frames * 50)
        line.close()
    assert hasty.memory_mb() - before < 60


def test_a_client_that_reads_all_the_time_is_not_cut_off(hasty):
    """However much waits for it whenever the server looks: it reads less than is answered."""
    line = raw(hasty, room=16_384)

    def send():
        with suppress(OSError):
            while True:
                line.sendall(binary(JPEG[:100]) * 20)

    sender = threading.Thread(target=send)
    sender.start()
    # Longer than from one look to the second behind it.
    end = time.monotonic() + 7
    while time.monotonic() < end:
        assert line.recv(16_384)
        time.sleep(0.1)
    line.shutdown(socket.SHUT_RDWR)
    sender.join(60)
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
def test_a_message_that_comes_too_slowly(hasty, begun):
    line = raw(hasty)
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


def test_bytes_behind_the_request_are_no_messages(hasty):
    """The connection is refused, and counts for nothing: more of them than may be open."""
    request = HANDSHAKE.format(path=STREAM).encode()
    lines = []
    for sent in [request + binary(JPEG[:100])] * 7 + [request + request, request + b"G"]:
        lines.append(socket.create_connection(("127.0.0.1", hasty.port), 60))
        lines[-1].sendall(sent)
    for line in lines:
        said = said_by(line)
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert b"before the server accepted the WebSocket" in said
    raw(hasty).close()
