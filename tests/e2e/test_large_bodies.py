"""Large bodies, which arrive in a buffer of their size: whole, broken off, refused, followed."""

import contextlib
import socket
import ssl
import struct
import time
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest
from tests.certificates import make_pair

pytestmark = pytest.mark.real

SIZE = 1_200_000


def request(size: int = SIZE, **headers: object) -> tuple[bytes, np.ndarray]:
    """An infer request with random numbers in binary, and the numbers."""
    numbers = np.random.default_rng(size).random((1, size), np.float32)
    tensor = {"name": "INPUT0", "shape": [1, size], "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": numbers.nbytes}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    fields = {"Host": "localhost", "Content-Length": len(text) + numbers.nbytes}
    fields |= {"Inference-Header-Content-Length": len(text), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\n{lines}\r\n".encode()
    return head + text + numbers.tobytes(), numbers


def receive(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer, without a byte of what follows."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte
        head += byte
    size = int(head.split(b"\ncontent-length: ")[1].split(b"\r\n")[0])
    body = bytearray()
    while len(body) < size:
        body += connection.recv(size - len(body))
    return int(head[9:12]), bytes(body)


def is_echo(answer: tuple[int, bytes], numbers: np.ndarray) -> bool:
    return answer[0] == 200 and answer[1].endswith(numbers.tobytes())


@pytest.fixture
def models(shared) -> Path:
    folder: Path = shared / "data" / "triton" / "models"
    if not folder.is_dir():
        pytest.skip(f"models are absent: {folder} is not there")
    return folder


@pytest.fixture
def start(models, serve):
    def started(*flags: str):
        return serve(models, "--model-control-mode=explicit", "--load-model=identity_fp32", *flags)

    return started


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def test_they_arrive_whole_in_pieces_of_any_size_and_others_follow(start):
    server = start()
    with connect(server) as connection:
        for piece in (1 << 30, 1_000_003, 65_536):
            sent, numbers = request()
            for at in range(0, len(sent), piece):
                connection.sendall(sent[at : at + piece])
            assert is_echo(receive(connection), numbers)
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        small, few = request(10)
        # What follows in the same bytes is read behind the body, in its order.
        connection.sendall(sent + small + live + sent)
        assert is_echo(receive(connection), numbers)
        assert is_echo(receive(connection), few)
        assert receive(connection) == (200, b'{"live":true}')
        assert is_echo(receive(connection), numbers)
        connection.sendall(request(SIZE, Connection="close")[0])
        assert is_echo(receive(connection), numbers)
        assert connection.recv(1) == b""


def test_over_tls(start, tmp_path):
    key, certificate = make_pair(tmp_path, "server")
    server = start(f"--http-server-cert={certificate}", f"--http-server-key={key}")
    context = ssl.create_default_context(cafile=certificate)
    with (
        connect(server) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        sent, numbers = request()
        for _ in range(3):
            connection.sendall(sent)
            assert is_echo(receive(connection), numbers)


def test_one_that_does_not_come_whole(start, monkeypatch):
    monkeypatch.setenv("FOVEA_BODY_TIMEOUT_S", "1")
    server = start()
    sent, numbers = request()
    with connect(server) as connection:
        connection.sendall(sent[: len(sent) // 2])
        status, body = receive(connection)
        assert (status, b"did not arrive within 1 s" in body) == (400, True)
        # The rest is dropped, and no request.
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent[len(sent) // 2 :])
            assert connection.recv(1) == b""
    with connect(server) as connection:
        connection.sendall(sent[: len(sent) // 2])
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connect(server) as connection:
        connection.sendall(sent)
        assert is_echo(receive(connection), numbers)
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_the_memory_of_all_is_limited(start):
    server = start("--max-held-mb=8")
    sent, _ = request()
    with connect(server) as first, connect(server) as second:
        first.sendall(sent[: len(sent) - 100])
        time.sleep(0.3)
        with contextlib.suppress(ConnectionError):
            second.sendall(sent)
        assert receive(second)[0] == 503
        first.sendall(sent[len(sent) - 100 :])
        status, _ = receive(first)
        # The answer needs as much again.
        assert status in (200, 503)
    with connect(server) as third:
        third.sendall(sent[:2_000_000])
        time.sleep(0.2)
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200


@pytest.mark.parametrize("header", [{}, {"Inference-Header-Content-Length": "300000"}])
@pytest.mark.parametrize("path", ["/v2/logging", "/v2/models/identity_fp32/infer"])
def test_large_json(start, header, path):
    server = start()
    body = orjson.dumps({"inputs": [], "x": "y" * 500_000})
    answer = httpx.post(server.url + path, content=body, headers=header)
    assert ("error" in answer.json()) == (path != "/v2/logging")
    assert "Traceback" not in server.log.read_text()
