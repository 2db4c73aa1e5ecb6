"""Without the memory to decode it, a good image is not called damaged: it is to be sent again."""

import io
import resource
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as grpc_client
from PIL import Image
from tests.e2e.test_v2_images import images
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

SIDE = 7900  # 187 MB once decoded, and a few hundred kB as files
LEFT = 120 << 20


@pytest.fixture(scope="module")
def large() -> dict[str, bytes]:
    image, files = Image.new("RGB", (SIDE, SIDE), (90, 120, 200)), {}
    for kind, options in {"JPEG": {}, "PNG": {}, "WEBP": {"lossless": True}, "GIF": {}}.items():
        out = io.BytesIO()
        image.save(out, kind, **options)
        files[kind] = out.getvalue()
    return files


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    flags = ("--api=deepstack",)
    server = start_server(demo_repository, tmp_path_factory.mktemp("full"), flags)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def full(server, demo_model):
    """The same server, once it has answered and may take only a little more memory."""
    scene = (demo_model.parent / "scene-1.jpg").read_bytes()
    for _ in range(4):
        assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + LEFT
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, most))
    return server, scene


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_it_is_503_with_a_time_to_try_again(full, large, kind):
    server, scene = full
    answer = httpx.post(server.predict_url("digits"), content=large[kind], timeout=60)
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert error["code"] == "no_memory"
    assert f"{SIDE}x{SIDE}" in error["message"]
    assert "later" in error["message"]
    assert int(answer.headers["Retry-After"]) >= 1
    assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200


def test_other_images_of_the_request_are_answered(full, large):
    server, scene = full
    files = [("images", ("a.jpg", scene)), ("images", ("b.png", large["PNG"]))]
    good, bad = httpx.post(server.predict_url("digits"), files=files, timeout=60).json()["images"]
    assert good["detections"]
    assert bad["error"]["code"] == "no_memory"


def test_over_grpc_it_is_unavailable(full, large):
    server, _ = full
    with (
        grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException, match="not enough memory") as refused,
    ):
        client.infer("digits", images(grpc_client, large["PNG"], name="images"))
    assert refused.value.status() == "StatusCode.UNAVAILABLE"


def test_in_another_api_it_is_an_error_of_the_server(full, large):
    server, _ = full
    files = {"image": ("a.png", large["PNG"])}
    answer = httpx.post(server.url + "/v1/vision/detection", files=files, timeout=60)
    assert answer.status_code == 503, answer.text
    assert "not enough memory" in answer.text


def test_a_damaged_image_is_still_the_senders_affair(full, large):
    server, _ = full
    answer = httpx.post(server.predict_url("digits"), content=large["PNG"][:200])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_image")
