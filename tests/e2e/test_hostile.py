"""Two hundred malformed requests while good ones go on: each gets its 4xx, nobody else suffers."""

import base64
import contextlib
import io
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

Case = tuple[str, bytes]


def request(body: bytes, *headers: str, path: str = "", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [
        f"POST /v1/models/digits/predict{path} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {size}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def encoded(scene: bytes, kind: str, **options) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(scene)).resize((320, 240)).save(file, kind, **options)
    return file.getvalue()


def truncations(scene: bytes) -> Iterator[Case]:
    """At every power of two, and by the last byte."""
    images = {
        "jpeg": scene,
        "progressive": encoded(scene, "JPEG", progressive=True),
        "png": encoded(scene, "PNG"),
        "webp": encoded(scene, "WEBP"),
        "bmp": encoded(scene, "BMP"),
        "tiff": encoded(scene, "TIFF"),
    }
    for kind, data in images.items():
        for cut in (2**n for n in range(20) if 2**n < len(data) - 64):
            yield f"{kind} cut at {cut}", request(data[:cut])
        yield f"{kind} without its last quarter", request(data[: len(data) * 3 // 4])


def bombs(scene: bytes) -> Iterator[Case]:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    most = 2**31 - 1
    for width, height in ((60_000, 60_000), (1, most), (most, 1), (0, 10), (10_001, 10_000)):
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
        png += chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")
        yield f"png that claims {width}x{height}", request(png)
    start = scene.index(b"\xff\xc0") + 5
    for width, height in ((65_500, 65_500), (0, 0), (65_535, 1)):
        jpeg = scene[:start] + struct.pack(">HH", height, width) + scene[start + 4 :]
        yield f"jpeg that claims {width}x{height}", request(jpeg)
    bmp = bytearray(encoded(scene, "BMP"))
    bmp[18:26] = struct.pack("<ii", 50_000, 50_000)
    yield "bmp that claims 50000x50000", request(bytes(bmp))


def foreign(scene: bytes) -> Iterator[Case]:
    for data in (
        b"hello", b"\0", bytes(100_000), b"%PDF-1.7\n", b"PK\x03\x04" + bytes(100),
        b"\x7fELF" + bytes(100), b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"<!DOCTYPE html>",
        b"\xff\xd8\xff", b"\xff\xd8\xff\xe0" + b"\xff" * 5000, b"\x89PNG\r\n\x1a\n", b"GIF89a",
        b"RIFF\0\0\0\0WEBP", b"II*\0" + bytes(64), b"BM" + bytes(64), b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"",
    ):  # fmt: skip
        yield f"not an image: {data[:12]!r}", request(data)
        yield f"labelled image/jpeg: {data[:12]!r}", request(data, "Content-Type: image/jpeg")


def bad_json(scene: bytes) -> Iterator[Case]:
    good = base64.b64encode(scene).decode()
    image = f'{{"images":[{{"data":"{good}"}}],'
    for text in (
        "", "{", "null", "[]", "1", '"x"', "{}", "[" * 10_000,
        *(f'{{"images":{images}}}' for images in (
            "null", "{}", "[]", "[1]", "[null]", '[{"data":null}]', '[{"data":"%%%"}]',
            '[{"data":"aGVsbG8="}]', '[{"url":"http://127.0.0.1/"}]',
            '[{"url":"file:///etc/passwd"}]', '[{"path":"/etc/passwd"}]',
            f'[{{"data":"{good[: len(good) // 2]}"}}]',
        )),
        *(image + option + "}" for option in (
            '"conf":NaN', '"conf":"high"', '"conf":1e400', '"iou":-1', '"max_det":0',
            '"max_det":1e99', '"classes":["a"]', '"classes":[-1]', '"shell":"rm"',
        )),
    ):  # fmt: skip
        yield f"json {text[:40]}", request(text.encode(), "Content-Type: application/json")
    yield "an image labelled json", request(scene, "Content-Type: application/json")
    utf_16 = '{"images":[]}'.encode("utf-16")
    yield "json in utf-16", request(utf_16, "Content-Type: application/json")


def bad_forms(scene: bytes) -> Iterator[Case]:
    part = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + scene
    form = "Content-Type: multipart/form-data; boundary=b"
    yield "form without boundary", request(part, "Content-Type: multipart/form-data")
    yield "form with another boundary", request(part + b"\r\n--b--\r\n", form + "c")
    yield "form that does not end", request(part, form)
    yield "form without parts", request(b"--b--\r\n", form)
    yield (
        "form of text only",
        request(b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n--b--\r\n', form),
    )
    yield "form of 70 images", request((part[:75] + b"\r\n") * 70 + b"--b--\r\n", form)
    yield "form part without headers", request(b"--b\r\n\r\nx\r\n--b--\r\n", form)
    yield "an image labelled form", request(scene, form)
    yield (
        "form with a bad option",
        request(
            b'--b\r\nContent-Disposition: form-data; name="conf"\r\n\r\n9\r\n'
            + part
            + b"\r\n--b--\r\n",
            form,
        ),
    )


def bad_options(scene: bytes) -> Iterator[Case]:
    for query in (
        "conf=2", "conf=-1", "conf=nan", "conf=inf", "conf=", "conf=a", "iou=9", "iou=-0.1",
        "max_det=0", "max_det=-5", "max_det=99999", "max_det=1.5", "max_det=" + "9" * 5000,
        "classes=a", "classes=-1", "classes=1,,2", "classes=999999999999", "agnostic=maybe",
        "verbose=1", "conf=0.5&conf=0.6", "%00=1", "conf=%ff",
    ):  # fmt: skip
        yield f"?{query[:20]}", request(scene, path="?" + query)
    for value in ("x", "-1", "0", "nan", "inf", "1e99", ""):
        yield f"timeout {value!r}", request(scene, f"X-Request-Timeout-Ms: {value}")


def lies(scene: bytes) -> Iterator[Case]:
    yield "a declared length over the limit", request(scene, length=10**12)
    yield "a negative length", request(scene, length=-1)
    yield "gzip that is none", request(scene, "Content-Encoding: gzip")
    yield "a length shorter than the image", request(scene, length=len(scene) // 2)
    yield "a path out of the repository", request(scene).replace(b"/digits/", b"/..%2f..%2fetc/")
    yield "a version that is none", request(scene).replace(b"/predict", b"/versions/x/predict", 1)
    yield (
        "a version too large",
        request(scene).replace(b"/predict", b"/versions/" + b"9" * 400 + b"/predict", 1),
    )
    yield "a name too long", request(scene).replace(b"digits", b"d" * 10_000)
    yield "no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"


def status(port: int, raw: bytes) -> int:
    """Status of the answer to bytes sent as they are; 0 where the connection just ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        # Refused while sending, the answer is there already.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(raw)
        try:
            answer = connection.recv(65536)
        except ConnectionResetError:
            return 0
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def slow_body(port: int, scene: bytes) -> int:
    """Send half and stall."""
    return status(port, request(scene[: len(scene) // 2], length=len(scene)))


def disconnect(port: int, scene: bytes, sent: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request(scene)[:sent])


def test_two_hundred_malformed_requests(demo_repository, serve, scene, monkeypatch):
    monkeypatch.setenv("FOVEA_BODY_TIMEOUT_S", "2")
    server = serve(demo_repository)
    url = server.predict_url("digits")
    expected = httpx.post(url, content=scene).json()["images"]
    stop, wrong, served = threading.Event(), [], []

    def good_client() -> None:
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                answer = client.post(url, content=scene)
                served.append(answer.status_code)
                if answer.status_code != 200 or answer.json()["images"] != expected:
                    wrong.append(answer.text)

    cases = [
        case
        for make in (truncations, bombs, foreign, bad_json, bad_forms, bad_options, lies)
        for case in make(scene)
    ]
    goods = [threading.Thread(target=good_client) for _ in range(2)]
    for thread in goods:
        thread.start()
    try:
        process = psutil.Process(server.process.pid)
        with ThreadPoolExecutor(8) as pool:
            stalled = [pool.submit(slow_body, server.port, scene) for _ in range(4)]
            answers = list(pool.map(lambda case: (case[0], status(server.port, case[1])), cases))
            before = process.memory_info().rss
            for sent in range(0, len(scene), len(scene) // 16):
                disconnect(server.port, scene, sent)
            again = list(pool.map(lambda case: (case[0], status(server.port, case[1])), cases))
            stalled_answers = [stall.result() for stall in stalled]
        time.sleep(0.5)
        grown = process.memory_info().rss - before
    finally:
        stop.set()
        for thread in goods:
            thread.join()
    assert len(cases) >= 200
    assert [a for a in answers if not 400 <= a[1] < 500] == []
    assert again == answers
    assert stalled_answers == [400] * 4
    assert not wrong, wrong[0]
    assert len(served) > 20
    assert grown < 30e6, f"memory grew by {grown / 1e6:.0f} MB"
    assert "Traceback" not in server.log.read_text()
    assert server.stop() == 0
