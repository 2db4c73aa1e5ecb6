"""What clients make the server hold is bounded, whatever they send or do not read."""

import contextlib
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = pytest.mark.real

HELD_MB = 100
MODELS = ("identity_fp32", "slow_identity")


@pytest.fixture
def server(shared, serve, monkeypatch) -> Iterator:
    repository: Path = shared / "data" / "triton" / "models"
    if not repository.is_dir():
        pytest.skip(f"models are absent: {repository} is not there")
    monkeypatch.setenv("FOVEA_BODY_TIMEOUT_S", "2")
    server = serve(
        repository,
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in MODELS),
        f"--max-held-mb={HELD_MB}",
    )
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def memory_mb(server) -> float:
    return psutil.Process(server.process.pid).memory_info().rss / 1e6


def post(model: str, body: bytes, **headers: object) -> bytes:
    sent = {"Host": "localhost", "Content-Length": len(body)}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\n{head}\r\n".encode() + body


def tensor(count: int) -> tuple[bytes, int]:
    """An infer body with zeros in binary, and the size of its JSON."""
    document = {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [1, count],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4 * count},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(document).encode()
    return text + bytes(4 * count), len(text)


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def send_until_cut_off(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(data)


def test_a_client_that_sends_and_never_reads_is_cut_off(server):
    body, size = tensor(4 << 20)
    request = post("identity_fp32", body, Inference_Header_Content_Length=size)
    before = memory_mb(server)
    with connect(server) as connection:
        send_until_cut_off(connection, request)
        assert memory_mb(server) - before < 6 * HELD_MB
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200


def test_answers_that_nobody_reads_are_counted(server):
    body, size = tensor(10_000_000)
    request = post("identity_fp32", body, Inference_Header_Content_Length=size)
    with ExitStack() as stack:
        unread: list[socket.socket] = []
        for _ in range(4):
            last = stack.enter_context(connect(server))
            last.sendall(request)
            # The first is answered however busy the machine is.
            last.settimeout(1 if unread else 60)
            with contextlib.suppress(TimeoutError):
                assert last.recv(12) == b"HTTP/1.1 200"
                unread.append(last)
                continue
            break
        assert 1 <= len(unread) < 4
        # They go away, so that there is room for the answer that waits.
        for connection in unread:
            connection.close()
        last.settimeout(60)
        assert last.recv(12) == b"HTTP/1.1 200"


def test_a_length_that_is_declared_costs_nothing(server):
    before = memory_mb(server)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connect(server))
            connection.sendall(post("identity_fp32", b"", Content_Length=64 << 20) + b"{")
            connection.sendall(b"}")
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        assert memory_mb(server) - before < HELD_MB


@pytest.mark.parametrize("path", ["/v2/models/identity_fp32/infer", "/v1/models/x/predict"])
@pytest.mark.parametrize("line", [b"name: %s\r\n" % (b"a" * 50), b"a" * 60])
def test_trailers_have_an_end(server, path, line):
    before = memory_mb(server)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(head.encode() + b"1\r\n{\r\n0\r\nname: ")
        send_until_cut_off(connection, line * 1000)
    assert memory_mb(server) - before < HELD_MB


def test_what_is_unpacked_is_counted(server):
    body, size = tensor(10_000_000)
    packed = zlib.compress(body, 9)
    headers = {"Content_Encoding": "deflate", "Inference_Header_Content_Length": size}
    before = memory_mb(server)
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(20)]
        for connection in connections:
            connection.sendall(post("slow_identity", packed, **headers))
        statuses = [connection.recv(12) for connection in connections]
        assert memory_mb(server) - before < 8 * HELD_MB
    assert b"HTTP/1.1 503" in statuses


def test_a_client_that_breaks_off_behind_a_second_request(server):
    body = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}
    sent = post("slow_identity", json.dumps(body).encode()) * 2
    for _ in range(10):
        with connect(server) as connection:
            connection.sendall(sent)
            time.sleep(0.02)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until = time.monotonic() + 60
    while time.monotonic() < until:
        stats = httpx.get(f"{server.url}/v2/models/slow_identity/stats").json()
        counted = stats["model_stats"][0]["inference_stats"]
        if counted["fail"]["count"] + counted["success"]["count"] == 10:
            break
        time.sleep(0.05)
    assert counted["fail"]["count"] > 0, "given up before it was begun"
