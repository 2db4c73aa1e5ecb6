"""Images that are small as files and huge once decoded: what they cost others, and in memory; and
without the memory to decode it, a good image is not called damaged: it is to be sent again.
"""

import base64
import io
import json
import resource
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from PIL import Image
from tests.e2e.conftest import images
from tests.keyed import until
from tests.preprocess.test_header import huge_webp, tiff
from tests.serving import RunningServer, start_server
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

SIDE = 5000  # 25 megapixels: 75 MB as pixels
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
def flags() -> tuple[str, ...]:
    return ()


@pytest.fixture
def server(demo_repository, tmp_path, flags):
    server = start_server(demo_repository, tmp_path, (f"--max-inflight-mb={HELD_MB}", *flags))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def gif_of_a_small_screen() -> bytes:
    data = bytearray(encoded("GIF", SIDE))
    data[6:10] = struct.pack("<HH", 1, 1)
    return bytes(data)


def tiff_of_huge_tiles() -> bytes:
    raw = zlib.compress(bytes(SIDE * SIDE * 3), 1)
    fields = [(256, 3, 1, 16), (257, 3, 1, 16), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 2)]
    fields += [(277, 3, 1, 3), (322, 4, 1, SIDE), (323, 4, 1, SIDE), (324, 4, 1, 8)]
    return tiff(*fields, (325, 4, 1, len(raw)), data=raw) + bytes(4)


@pytest.mark.parametrize(
    ("make", "of_a_pixel", "statuses"),
    [
        # One takes 8 bytes a pixel at its peak, the letterbox included; eight took 3.5 GB.
        (lambda: encoded("PNG", SIDE), 8, {200}),
        # A few bytes that claim much.
        (lambda: huge_webp(7999, 7999), 3 * (7999 / SIDE) ** 2, {400, 413}),
        (lambda: huge_webp(16_384, 16_384), 3, {400, 413}),
        (gif_of_a_small_screen, 4, {200, 400}),
        (tiff_of_huge_tiles, 3, {200, 400}),
    ],
    ids=["png", "webp", "larger webp", "gif", "tiff"],
)
def test_many_at_once_take_the_memory_of_one(server, make, of_a_pixel, statuses):
    image, before = make(), server.memory_mb("VmHWM")

    def post(_: int) -> int:
        return httpx.post(server.predict_url("digits"), content=image, timeout=120).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(post, range(8))) <= statuses
    assert server.memory_mb("VmHWM") - before < 1.6 * of_a_pixel * SIDE**2 / 1e6
    assert server.metric("fovea_decoding_bytes") == 0


# A server with one thread for the model still has others to decode.
@pytest.mark.parametrize(
    ("kind", "source", "flags"),
    [
        ("small", "127.0.0.1", ("--threads=1",)),
        ("photo", "127.0.0.1", ()),
        ("photo", "127.0.0.2", ("--threads=1",)),
    ],
)
def test_a_good_image_is_answered_before_most_heavy_ones(server, huge, demo_model, source, kind):
    """A small one at once; one of 12 megapixels in its turn, from the same client or another."""
    small = (demo_model.parent / "scene-1.jpg").read_bytes()
    image = small if kind == "small" else encoded("JPEG", 3500)
    url, done = server.predict_url("digits"), []

    def heavy(_: int) -> None:
        done.append(httpx.post(url, content=huge, timeout=300).status_code)

    with ThreadPoolExecutor(8) as pool:
        waiting = pool.map(heavy, range(8))
        until(lambda: server.metric("fovea_decoding_bytes"))
        transport = httpx.HTTPTransport(local_address=source)
        with httpx.Client(transport=transport, timeout=60) as client:
            assert client.post(url, content=image).status_code == 200
        before = len(done)
        list(waiting)
    assert before <= (1 if kind == "small" else 2)
    assert done == [200] * 8


def test_a_client_that_leaves_while_its_image_waits_leaves_nothing(server, huge):
    url = server.predict_url("digits")
    head = f"POST {httpx.URL(url).path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(huge)}"
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(6)]
    for each in sockets:
        each.sendall(head.encode() + b"\r\n\r\n" + huge)
    until(lambda: server.metric("fovea_decoding_bytes"))
    for each in sockets:
        each.close()
    answer = httpx.post(url, content=huge, timeout=120)
    assert answer.status_code == 200
    assert server.metric("fovea_decoding_bytes") == 0


def test_a_request_whose_turn_does_not_come_in_time_is_504(server, huge):
    url = server.predict_url("digits")
    with ThreadPoolExecutor(4) as pool:
        waiting = pool.map(lambda _: httpx.post(url, content=huge, timeout=300), range(4))
        until(lambda: server.metric("fovea_decoding_bytes"))
        late = httpx.post(url, content=huge, headers={"X-Request-Timeout-Ms": "50"}, timeout=60)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert {answer.status_code for answer in waiting} == {200}


class Site(BaseHTTPRequestHandler):
    image = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.image)))
        self.end_headers()
        self.wfile.write(self.image)

    def log_message(self, *args):
        pass


def ways(server: RunningServer, image: bytes, address: str) -> dict[str, Callable[[], object]]:
    """Every way in which an image may come, and `ok` if it was answered."""
    url, text = server.predict_url("digits"), base64.b64encode(image).decode()

    def post(path: str, **given: object) -> str:
        answer = httpx.post(path, timeout=120, **given)  # type: ignore[arg-type]
        return "ok" if answer.status_code == 200 else answer.text

    def triton(protocol, port: int) -> str:
        with protocol.InferenceServerClient(f"127.0.0.1:{port}", **slow(protocol)) as client:
            client.infer("digits", images(protocol, image, name="images"))
        return "ok"

    def slow(protocol) -> dict[str, float]:
        return {"network_timeout": 120.0} if protocol is http_client else {}

    infer = {"model_id": "digits", "image": {"type": "base64", "value": text}}
    return {
        "raw": lambda: post(url, content=image),
        "form": lambda: post(url, files={"image": ("a.png", image)}),
        "json": lambda: post(url, json={"images": [{"data": text}]}),
        "url": lambda: post(url, json={"images": [{"url": address}]}),
        "tiles": lambda: post(f"{url}?tile=2000", content=image),
        "drawn": lambda: post(url, content=image, headers={"Accept": "image/jpeg"}),
        "v2 raw": lambda: post(
            f"{server.url}/v2/models/digits/infer",
            content=image,
            headers={"Inference-Header-Content-Length": "0"},
        ),
        "v2": lambda: triton(http_client, server.port),
        "grpc": lambda: triton(grpc_client, server.grpc_port),
        "deepstack": lambda: post(f"{server.url}/v1/vision/detection", files={"image": image}),
        "roboflow": lambda: post(f"{server.url}/infer/object_detection", json=infer),
        "roboflow, drawn": lambda: post(
            f"{server.url}/infer/object_detection", json=infer | {"visualize_predictions": True}
        ),
    }


@pytest.mark.parametrize(
    "flags", [("--allow-url", "--url-allow-host=127.0.0.1", "--api=deepstack", "--api=roboflow")]
)
def test_every_way_in_counts(server):
    image = encoded("PNG", SIDE)
    Site.image = image
    site = HTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    calls = ways(server, image, f"http://127.0.0.1:{site.server_port}/")
    before = server.memory_mb("VmHWM")
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            asked = {way: pool.submit(call) for way, call in calls.items()}
            assert {way: each.result() for way, each in asked.items()} == dict.fromkeys(calls, "ok")
    finally:
        site.shutdown()
        site.server_close()
    # One that is drawn on takes most, 12 bytes a pixel; together they would take ten times that.
    # Pixels that wait to be drawn on, or that tiles are cut from, stay.
    assert server.memory_mb("VmHWM") - before < 2 * 12 * SIDE**2 / 1e6
    assert server.metric("fovea_decoding_bytes") == 0


def test_images_of_one_request_take_turns_and_each_has_its_answer(server, huge, demo_model):
    small, before = (demo_model.parent / "scene-1.jpg").read_bytes(), server.memory_mb("VmHWM")
    cut = huge[: len(huge) // 2]
    files = [("images", ("a", each)) for each in (huge, small, cut, huge, small)]
    answer = httpx.post(server.predict_url("digits"), files=files, timeout=120).json()
    said = ["error" if "error" in each else len(each["detections"]) for each in answer["images"]]
    assert said[0] == said[3] == 0
    assert said[1] == said[4] > 0
    assert said[2] == "error"
    assert json.dumps(answer["images"][2]).count("ends early") == 1
    assert server.memory_mb("VmHWM") - before < 1.5 * 8 * SIDE**2 / 1e6


def test_a_model_that_is_unloaded_answers_what_waits_for_its_turn(demo_repository, tmp_path, huge):
    flags = ("--model-control-mode=explicit", "--load-model=digits", f"--max-inflight-mb={HELD_MB}")
    server = start_server(demo_repository, tmp_path, flags)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(httpx.post, server.predict_url("digits"), content=huge, timeout=120)
            for _ in range(4)
        ]
        until(lambda: server.metric("fovea_inflight_requests") >= 4)
        unload = httpx.post(f"{server.url}/v2/repository/models/digits/unload", timeout=120)
        assert unload.status_code == 200
        assert [each.result().status_code for each in asked] == [200] * 4
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


# 187 MB once decoded, and a few hundred kB as files
LARGE_SIDE, LEFT = 7900, 120 << 20


@pytest.fixture(scope="module")
def large() -> dict[str, bytes]:
    image, files = Image.new("RGB", (LARGE_SIDE, LARGE_SIDE), (90, 120, 200)), {}
    for kind, options in {"JPEG": {}, "PNG": {}, "WEBP": {"lossless": True}, "GIF": {}}.items():
        out = io.BytesIO()
        image.save(out, kind, **options)
        files[kind] = out.getvalue()
    return files


@pytest.fixture(scope="module")
def full(demo_repository, demo_model, tmp_path_factory):
    """A server that has answered, and may take only a little more memory; and what it answered."""
    folder = tmp_path_factory.mktemp("full")
    server = start_server(demo_repository, folder, ("--api=deepstack",))
    scene = (demo_model.parent / "scene-1.jpg").read_bytes()
    for _ in range(4):
        assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + LEFT
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, most))
    yield server, scene
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_without_memory_it_is_503_with_a_time_to_try_again(full, large, kind):
    server, scene = full
    answer = httpx.post(server.predict_url("digits"), content=large[kind], timeout=60)
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert error["code"] == "no_memory"
    assert f"{LARGE_SIDE}x{LARGE_SIDE}" in error["message"]
    assert "later" in error["message"]
    assert int(answer.headers["Retry-After"]) >= 1
    assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200


def test_without_memory_other_images_of_the_request_are_answered(full, large):
    server, scene = full
    files = [("images", ("a.jpg", scene)), ("images", ("b.png", large["PNG"]))]
    good, bad = httpx.post(server.predict_url("digits"), files=files, timeout=60).json()["images"]
    assert good["detections"]
    assert bad["error"]["code"] == "no_memory"


def test_without_memory_other_apis_say_so_and_damaged_images_are_damaged(full, large):
    server, _ = full
    with (
        grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException, match="not enough memory") as refused,
    ):
        client.infer("digits", images(grpc_client, large["PNG"], name="images"))
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    files = {"image": ("a.png", large["PNG"])}
    answer = httpx.post(server.url + "/v1/vision/detection", files=files, timeout=60)
    assert (answer.status_code, "not enough memory" in answer.text) == (503, True)
    answer = httpx.post(server.predict_url("digits"), content=large["PNG"][:200])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_image")
