"""The server holds a bounded number of bytes for clients that send much or read nothing."""

import contextlib
import io
import json
import socket
import ssl
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest
from PIL import Image
from tests.certificates import make_pair
from tests.keyed import until
from tests.server.registries import adder
from tests.serving import RunningServer, start_server

pytestmark = pytest.mark.slow

LIMIT = 300_000
FLAGS = (f"--http-max-input-size={LIMIT}", "--max-image-mb=0.0625", "--max-megapixels=0.25")
PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def strict(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """A server with small limits."""
    server = start_server(demo_repository, tmp_path_factory.mktemp("strict"), FLAGS)
    yield server
    assert server.stop() == 0


def in_pieces(size: int) -> Iterator[bytes]:
    for at in range(0, size, 65_536):
        yield bytes(min(65_536, size - at))


def png(side: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side)).save(out, "PNG")
    return out.getvalue()


ENDLESS = 1 << 40
TOO_LARGE = (413, "body_too_large", "--http-max-input-size")
OVER_V2 = (400, None, f"exceeds the maximum allowed value of {LIMIT} bytes")


@pytest.mark.parametrize(
    ("path", "make", "expected"),
    [
        (PREDICT, lambda: bytes(LIMIT + 1), TOO_LARGE),
        (PREDICT, lambda: bytes(20_000_000), TOO_LARGE),
        (PREDICT, lambda: in_pieces(LIMIT + 1), TOO_LARGE),
        (PREDICT, lambda: in_pieces(ENDLESS), TOO_LARGE),
        (INFER, lambda: bytes(LIMIT + 1), OVER_V2),
        (INFER, lambda: bytes(20_000_000), OVER_V2),
        (INFER, lambda: in_pieces(20_000_000), OVER_V2),
        (PREDICT, lambda: bytes(70_000), (413, "image_too_large", "--max-image-mb")),
        (PREDICT, lambda: png(600), (413, "image_too_large", "--max-megapixels")),
        (PREDICT, lambda: png(400), (200, None, "detections")),
    ],
)
def test_what_is_over_a_limit_is_told_which_flag_raises_it(strict, path, make, expected):
    status, code, said = expected
    answer = httpx.post(strict.url + path, content=make())
    assert answer.status_code == status
    assert said in answer.text
    if code is not None:
        assert answer.json()["error"]["code"] == code


HELD_MB, SIZE = 100, 1_200_000
HOLDING = (f"--max-inflight-mb={HELD_MB}", "--body-timeout-s=2")
ADD = "/v2/models/wide/infer"


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """A model that adds 1 to rows of any length."""
    folder: Path = tmp_path_factory.mktemp("wide")
    adder(folder, "wide", shape=("N", "M"))
    return folder


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory) -> Iterator[RunningServer]:
    server = start_server(repository, tmp_path_factory.mktemp("log"), HOLDING)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def head(path: str, **headers: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()


def infer(numbers: np.ndarray) -> tuple[bytes, int]:
    """The body that asks for these numbers in binary, and the size of its JSON."""
    tensor = {"name": "X", "shape": [1, numbers.size], "datatype": "INT32"}
    tensor["parameters"] = {"binary_data_size": numbers.nbytes}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return text + numbers.tobytes(), len(text)


def request(size: int = SIZE, **headers: object) -> tuple[bytes, bytes]:
    """A request with random numbers, and those of its answer."""
    numbers = np.random.default_rng(size).integers(0, 1 << 30, size, np.int32)
    body, text = infer(numbers)
    given = {"Content_Length": len(body), "Inference_Header_Content_Length": text, **headers}
    return head(ADD, **given) + body, (numbers + 1).tobytes()


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def receive(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer, without a byte of what follows."""
    told = b""
    while not told.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte
        told += byte
    size = int(told.split(b"\ncontent-length: ")[1].split(b"\r\n")[0])
    body = bytearray()
    while len(body) < size:
        body += connection.recv(size - len(body))
    return int(told[9:12]), bytes(body)


def answered(connection: socket.socket, expected: bytes) -> bool:
    status, body = receive(connection)
    return status == 200 and body.endswith(expected)


def reset(connection: socket.socket) -> None:
    """Let a connection break off where it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def send_until_cut_off(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(data)


def test_bodies_arrive_whole_in_pieces_of_any_size_and_others_follow(server):
    with connect(server) as connection:
        sent, expected = request()
        for piece in (1 << 30, 1_000_003, 65_536):
            for at in range(0, len(sent), piece):
                connection.sendall(sent[at : at + piece])
            assert answered(connection, expected)
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        small, few = request(10)
        # What follows in the same bytes is read behind the body, in its order.
        connection.sendall(sent + small + live + sent)
        assert answered(connection, expected)
        assert answered(connection, few)
        assert receive(connection) == (200, b'{"live":true}')
        assert answered(connection, expected)
        connection.sendall(request(SIZE, Connection="close")[0])
        assert answered(connection, expected)
        assert connection.recv(1) == b""


def test_bodies_over_tls(repository, serve, tmp_path):
    key, certificate = make_pair(tmp_path, "server")
    flags = (f"--http-server-cert={certificate}", f"--http-server-key={key}")
    server, (sent, expected) = serve(repository, *flags), request()
    context = ssl.create_default_context(cafile=certificate)
    with (
        connect(server) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        for _ in range(3):
            connection.sendall(sent)
            assert answered(connection, expected)


def test_a_body_that_does_not_come_whole(server):
    sent, expected = request()
    with connect(server) as connection:
        connection.sendall(sent[: len(sent) // 2])
        status, body = receive(connection)
        assert (status, b"did not arrive within 2 s" in body) == (400, True)
        # The rest is dropped, and no request.
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent[len(sent) // 2 :])
            assert connection.recv(1) == b""
    with connect(server) as connection:
        connection.sendall(sent[: len(sent) // 2])
        reset(connection)
    with connect(server) as connection:
        connection.sendall(sent)
        assert answered(connection, expected)


@pytest.mark.parametrize("headers", [{}, {"Inference-Header-Content-Length": "300000"}])
@pytest.mark.parametrize("path", ["/v2/logging", ADD])
def test_large_json(server, headers, path):
    body = orjson.dumps({"inputs": [], "x": "y" * 500_000})
    answer = httpx.post(server.url + path, content=body, headers=headers)
    assert ("error" in answer.json()) == (path != "/v2/logging")


def test_a_client_that_sends_and_never_reads_is_cut_off(server):
    before = server.memory_mb()
    with connect(server) as connection:
        send_until_cut_off(connection, request(4 << 20)[0])
        assert server.memory_mb() - before < 6 * HELD_MB
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200


def test_answers_that_nobody_reads_are_counted(server):
    sent, _ = request(10_000_000)
    with ExitStack() as stack:
        unread: list[socket.socket] = []
        for _ in range(4):
            last = stack.enter_context(connect(server))
            last.sendall(sent)
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
    before = server.memory_mb()
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connect(server))
            connection.sendall(head(ADD, Content_Length=64 << 20) + b"{")
            connection.sendall(b"}")
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        assert server.memory_mb() - before < HELD_MB


@pytest.mark.parametrize("path", [ADD, "/v1/models/x/predict"])
@pytest.mark.parametrize("line", [b"name: %s\r\n" % (b"a" * 50), b"a" * 60])
def test_trailers_have_an_end(server, path, line):
    before = server.memory_mb()
    with connect(server) as connection:
        connection.sendall(head(path, Transfer_Encoding="chunked") + b"1\r\n{\r\n0\r\nname: ")
        send_until_cut_off(connection, line * 1000)
    assert server.memory_mb() - before < HELD_MB


def test_what_is_unpacked_is_counted(server):
    body, size = infer(np.zeros(10_000_000, np.int32))
    packed, before = zlib.compress(body, 9), server.memory_mb()
    given = {"Content_Length": len(packed), "Content_Encoding": "deflate"}
    sent = head(ADD, Inference_Header_Content_Length=size, **given) + packed
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(20)]
        for connection in connections:
            connection.sendall(sent)
        statuses = [connection.recv(12) for connection in connections]
        assert server.memory_mb() - before < 8 * HELD_MB
    assert b"HTTP/1.1 503" in statuses


def test_the_memory_of_all_bodies_is_limited(repository, serve):
    server = serve(repository, "--max-inflight-mb=8")
    sent, _ = request()
    with connect(server) as first, connect(server) as second:
        first.sendall(sent[: len(sent) - 100])
        until(lambda: server.metric("fovea_inflight_bytes") > 4e6)
        with contextlib.suppress(ConnectionError):
            second.sendall(sent)
        assert receive(second)[0] == 503
        first.sendall(sent[len(sent) - 100 :])
        # The answer needs as much again.
        assert receive(first)[0] in (200, 503)
    with connect(server) as third:
        third.sendall(sent[:2_000_000])
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200


@pytest.mark.real
def test_a_client_that_breaks_off_behind_a_second_request(shared, serve):
    repository = shared / "data" / "triton" / "models"
    server = serve(repository, "--model-control-mode=explicit", "--load-model=slow_identity")
    path, tensor = "/v2/models/slow_identity", {"name": "INPUT0", "shape": [1], "datatype": "FP32"}
    body = json.dumps({"inputs": [{**tensor, "data": [1]}]}).encode()
    first = head(f"{path}/infer", Content_Length=len(body), Expect="100-continue")
    for _ in range(10):
        with connect(server) as connection:
            connection.sendall((first + body) * 2)
            # It has both, and has begun the first.
            assert connection.recv(12) == b"HTTP/1.1 100"
            reset(connection)

    def counted(kind: str) -> int:
        [stats] = httpx.get(f"{server.url}{path}/stats").json()["model_stats"]
        return int(stats["inference_stats"][kind]["count"])

    until(lambda: counted("fail") + counted("success") == 10)
    assert counted("fail") > 0, "given up before it was begun"
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
