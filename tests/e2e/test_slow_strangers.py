"""Clients that send next to nothing take nothing from others, on any port."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.server.registries import wait_until
from tests.serving import RunningServer

pytestmark = pytest.mark.slow

_HALF = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


def close(port: int, within_s: float) -> bool:
    """Whether a server closes two connections that bring no whole head."""
    with ThreadPoolExecutor(2) as pool:
        return all(pool.map(lambda sent: _closes(port, sent, within_s), (b"", _HALF)))


def _closes(port: int, sent: bytes, within_s: float) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
        connection.sendall(sent)
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


@pytest.fixture
def server(serve, demo_repository) -> RunningServer:
    running: RunningServer = serve(demo_repository, "--body-timeout-s=1")
    return running


@pytest.mark.parametrize("port", ["port", "metrics_port"])
def test_connections_without_a_head_are_closed(server, port):
    assert close(getattr(server, port), 40)


def test_clients_that_leave_right_behind_their_bodies_leave_nothing_held(server):
    path, sizes = "/v1/models/digits/predict", range(140_000, 300_000, 20_000)
    for size in sizes:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(head.encode() + bytes(size))
    wait_until(lambda: server.log.read_text().count(path) == len(sizes))
    metrics = f"http://127.0.0.1:{server.metrics_port}/metrics"
    wait_until(lambda: "\nfovea_held_bytes 0\n" in httpx.get(metrics).text)


def test_chunks_of_one_byte_hold_up_nobody(server):
    head = (
        "POST /v1/models/digits/predict HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    # Whole at first, so that the server finds much to read at once.
    chunks = b"1\r\nx\r\n" * 1_500_000
    over = threading.Event()
    got: list[bytes] = []

    def send() -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(head.encode() + chunks + b"0\r\n\r\n")
            with contextlib.suppress(OSError):
                got.append(connection.recv(4096))
        over.set()

    sender = threading.Thread(target=send)
    with httpx.Client(timeout=120) as client:
        assert client.get(f"{server.url}/v2/health/live").is_success
        sender.start()
        while not over.is_set():
            assert client.get(f"{server.url}/v2/health/live").is_success
            time.sleep(0.02)
    sender.join()
    # They are refused, and not parsed: a microsecond for each would be a second and a half.
    assert not got or b"at most 4096 chunks" in got[0]
