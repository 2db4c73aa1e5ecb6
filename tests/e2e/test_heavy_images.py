"""Images that are small as files and huge once decoded: what they cost others, and in memory."""

import io
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image
from tests.preprocess.test_header import huge_webp
from tests.serving import start_server

SIDE = 7900  # 62 megapixels: 187 MB as pixels
HELD_MB = 64


def encoded(kind: str, side: int) -> bytes:
    out = io.BytesIO()
    image = Image.new("RGB", (side, side), (90, 120, 200))
    image.save(out, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return out.getvalue()


@pytest.fixture(scope="module")
def huge() -> bytes:
    return encoded("PNG", SIDE)


@pytest.fixture
def server(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path, (f"--max-held-mb={HELD_MB}",))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def peak_mb(server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) >> 10


def metric(server, name: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    return float(re.search(rf"^{name} (\S+)", text, re.MULTILINE)[1])


def test_many_at_once_take_the_memory_of_one(server, huge):
    before = peak_mb(server)
    with ThreadPoolExecutor(8) as pool:
        posted = pool.map(
            lambda _: httpx.post(server.predict_url("digits"), content=huge, timeout=120), range(8)
        )
        assert {answer.status_code for answer in posted} == {200}
    # One takes 8 bytes a pixel at its peak, the letterbox included; eight took 3.5 GB.
    assert peak_mb(server) - before < 1.5 * 8 * SIDE**2 / 1e6
    assert metric(server, "fovea_decoding_bytes") == 0


def test_a_webp_of_a_few_bytes_takes_no_memory_for_what_it_claims(server):
    before = peak_mb(server)
    for side in (7999, 16_384):
        answer = httpx.post(server.predict_url("digits"), content=huge_webp(side, side))
        assert answer.status_code in (400, 413)
    assert peak_mb(server) - before < 1.5 * 3 * 7999**2 / 1e6


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_a_good_image_is_answered_before_most_heavy_ones(server, huge, demo_model, source):
    """A small one from the same client at once; one of 12 megapixels from another in its turn."""
    small = (demo_model.parent / "scene-1.jpg").read_bytes()
    image = small if source == "127.0.0.1" else encoded("JPEG", 3500)
    url, done = server.predict_url("digits"), []

    def heavy(_: int) -> None:
        done.append(httpx.post(url, content=huge, timeout=300).status_code)

    with ThreadPoolExecutor(12) as pool:
        waiting = pool.map(heavy, range(12))
        while metric(server, "fovea_decoding_bytes") == 0:
            pass
        transport = httpx.HTTPTransport(local_address=source)
        with httpx.Client(transport=transport, timeout=60) as client:
            assert client.post(url, content=image).status_code == 200
        before = len(done)
        list(waiting)
    assert before <= 3
    assert done == [200] * 12


def test_a_client_that_leaves_while_its_image_waits_leaves_nothing(server, huge):
    url = server.predict_url("digits")
    head = f"POST {httpx.URL(url).path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(huge)}"
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(6)]
    for each in sockets:
        each.sendall(head.encode() + b"\r\n\r\n" + huge)
    while metric(server, "fovea_decoding_bytes") == 0:
        pass
    for each in sockets:
        each.close()
    answered = threading.Event()
    answer = httpx.post(url, content=huge, timeout=120)
    answered.set()
    assert answer.status_code == 200
    assert metric(server, "fovea_decoding_bytes") == 0


def test_a_request_whose_turn_does_not_come_in_time_is_504(server, huge):
    url = server.predict_url("digits")
    with ThreadPoolExecutor(4) as pool:
        waiting = pool.map(lambda _: httpx.post(url, content=huge, timeout=300), range(4))
        while metric(server, "fovea_decoding_bytes") == 0:
            pass
        late = httpx.post(url, content=huge, headers={"X-Request-Timeout-Ms": "50"}, timeout=60)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert {answer.status_code for answer in waiting} == {200}
