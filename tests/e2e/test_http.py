"""The HTTP surface as its users meet it."""

import base64
import gzip
import io
import json
import zlib
from importlib.metadata import version

import httpx
import numpy as np
import pytest
from PIL import Image

from fovea_client import Client
from fovea_preprocess.image import decode_image
from fovea_server.http.v1.schemas import ErrorAnswer, PredictAnswer


@pytest.fixture
def url(demo_server) -> str:
    return demo_server.predict_url("digits")


def names(answer, index=0) -> list[str]:
    return sorted(d["class_name"] for d in answer["images"][index]["detections"])


def test_v1_asks_for_the_header_of_inference(demo_repository, serve, scene):
    server = serve(demo_repository, "--http-restricted-api=inference:key=secret")
    for headers, status in (({}, 403), ({"key": "guess"}, 403), ({"Key": "secret"}, 200)):
        answer = httpx.post(server.predict_url("digits"), content=scene, headers=headers)
        assert answer.status_code == status, answer.text


def test_a_raw_image_gets_its_true_digits(url, scene, demo_truth):
    answer = httpx.post(url, content=scene, headers={"Content-Type": "image/jpeg"}).json()
    PredictAnswer.model_validate(answer, strict=True)
    assert names(answer) == sorted(d["class_name"] for d in demo_truth["scene-1.jpg"])


def test_the_same_image_in_every_wrapping(url, scene):
    raw = names(httpx.post(url, content=scene).json())
    form = httpx.post(url, files={"file": ("scene.jpg", scene)}).json()
    encoded = base64.b64encode(scene).decode()
    body = httpx.post(url, json={"images": [{"data": encoded}]}).json()
    version = httpx.post(url.replace("/predict", "/versions/1/predict"), content=scene).json()
    assert names(form) == names(body) == names(version) == raw


def test_addresses_for_one_type_of_body_or_answer(url, scene):
    raw = names(httpx.post(url, content=scene).json())
    form = httpx.post(f"{url}/form", files={"file": scene}, data={"max_det": "1"})
    assert len(names(form.json())) == 1
    # curl calls any body a form of its own kind.
    headers = {"content-type": "application/x-www-form-urlencoded"}
    images = json.dumps({"images": [{"data": base64.b64encode(scene).decode()}]})
    assert names(httpx.post(f"{url}/json", content=images, headers=headers).json()) == raw
    drawn = httpx.post(url.replace("/predict", "/annotate"), content=scene, params={"max_det": 1})
    assert drawn.headers["content-type"] == "image/jpeg"
    kind = {"accept": "image/jpeg"}
    asked = httpx.post(url, content=scene, params={"max_det": 1}, headers=kind)
    assert drawn.content == asked.content
    refused = httpx.post(f"{url}/form", content=scene, headers={"content-type": "image/jpeg"})
    assert refused.status_code == 400
    assert "send an image as it is to /predict" in refused.json()["error"]["message"]


def test_many_images_answer_in_order_and_a_bad_one_fails_alone(url, scene, second_scene):
    files = [("f", scene), ("f", scene[:5000]), ("f", second_scene), ("f", b"text")]
    response = httpx.post(url, files=files)
    answer = response.json()
    PredictAnswer.model_validate(answer, strict=True)
    assert response.status_code == 200
    assert [i.get("error", {}).get("code") for i in answer["images"]] == [
        None,
        "invalid_image",
        None,
        "invalid_image",
    ]
    assert names(answer, 0) == names(httpx.post(url, content=scene).json())
    assert names(answer, 2) == names(httpx.post(url, content=second_scene).json())


def test_options_change_the_answer(url, scene):
    def ask(**options):
        found = httpx.post(url, content=scene, params=options).json()["images"][0]["detections"]
        return [(d["class_id"], d["score"]) for d in found]

    everything = ask()
    assert ask(max_det=2) == everything[:2]
    one = everything[0][0]
    assert {c for c, _ in ask(classes=one)} == {one}
    assert {c for c, _ in ask(classes=[one, everything[1][0]])} == {one, everything[1][0]}
    assert len(ask(conf=0.001)) > len(everything)
    assert all(score >= 0.9 for _, score in ask(conf=0.9))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_in_the_upright_frame_whatever_the_orientation(url, scene, orientation):
    upright = Image.open(io.BytesIO(scene))
    # Store the image so that undoing EXIF orientation gives the upright one back.
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored.save(file, "PNG", exif=exif)
    image = httpx.post(url, content=file.getvalue()).json()["images"][0]
    expected = httpx.post(url, content=scene).json()["images"][0]
    assert image["orientation"] == orientation
    assert (image["width"], image["height"]) == upright.size
    for got, want in zip(image["detections"], expected["detections"], strict=True):
        assert got["class_name"] == want["class_name"]
        assert np.allclose(list(got["box"].values()), list(want["box"].values()), atol=1)


@pytest.mark.parametrize("kind", ["image/jpeg", "image/png"])
def test_an_annotated_image_on_request(url, scene, kind):
    response = httpx.post(url, content=scene, headers={"Accept": kind})
    assert response.headers["content-type"] == kind
    drawn, plain = decode_image(response.content).pixels, decode_image(scene).pixels
    assert drawn.shape == plain.shape
    changed = np.abs(drawn.astype(int) - plain).max(axis=2) > 60
    assert 0.001 < changed.mean() < 0.3, "boxes and labels, not another image"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/models/nobody/predict", 404, "not_found"),
        ("/v1/models/..%2F..%2Fetc/predict", 404, "not_found"),
        ("/v1/models/digits/versions/9/predict", 404, "not_found"),
        ("/v1/models/digits/versions/0/predict", 404, "not_found"),
        ("/v1/models/digits/versions/x/predict", 404, "not_found"),
        ("/v1/models/digits/predict?conf=2", 422, "invalid_option"),
        ("/v1/models/digits/predict?speed=2", 422, "invalid_option"),
        ("/v1/models/digits/predict?classes=sofa", 422, "invalid_option"),
        ("/v1/nowhere", 404, "not_found"),
    ],
)
def test_errors_have_a_code_and_a_message(demo_server, scene, path, status, code):
    response = httpx.post(demo_server.url + path, content=scene)
    ErrorAnswer.model_validate(response.json(), strict=True)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_other_errors(url, scene):
    def status(**request) -> tuple[int, str]:
        response = httpx.post(url, **request)
        return response.status_code, response.json()["error"]["code"]

    assert status(content=b"") == (400, "invalid_request")
    assert status(content=scene[:-9]) == (400, "invalid_image")
    assert status(json={"images": [{"url": "http://1.1.1.1/a"}]}) == (400, "fetch_refused")
    assert status(content=scene, headers={"Content-Encoding": "gzip"}) == (400, "invalid_request")
    assert status(content=scene, headers={"Content-Encoding": "br"}) == (400, "invalid_request")
    bomb = gzip.compress(bytes(65 << 20))
    assert status(content=bomb, headers={"Content-Encoding": "gzip"}) == (413, "body_too_large")
    assert status(content=scene, headers={"X-Request-Timeout-Ms": "x"}) == (422, "invalid_option")
    assert status(content=scene, headers={"X-Request-Timeout-Ms": "0.01"}) == (
        504,
        "deadline_exceeded",
    )
    assert httpx.get(url).status_code == 405


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_compressed_body_is_unpacked(url, scene, encoding, pack):
    packed = httpx.post(url, content=pack(scene), headers={"Content-Encoding": encoding})
    assert names(packed.json()) == names(httpx.post(url, content=scene).json())


def test_curls_way_to_damage_an_image_is_told(url, scene):
    curl = {"Content-Type": "application/x-www-form-urlencoded"}
    assert httpx.post(url, content=scene, headers=curl).status_code == 200
    hint = "(with curl: --data-binary, not -d)"
    without_line_ends = scene.replace(b"\r", b"").replace(b"\n", b"")
    for body, headers, hinted in (
        (without_line_ends, curl, True),
        (without_line_ends, {}, False),
        (scene[: len(scene) // 2], curl, False),
    ):
        answer = httpx.post(url, content=body, headers=headers)
        assert answer.status_code == 400
        assert (hint in answer.json()["error"]["message"]) == hinted


def test_json_without_its_content_type_is_told_so(url, scene):
    body = json.dumps({"images": [{"data": base64.b64encode(scene).decode()}]}).encode()
    hint = "add the header Content-Type: application/json"
    curl = {"Content-Type": "application/x-www-form-urlencoded"}
    # The short path, and FastAPI's.
    for headers in ({}, curl, {"Accept": "image/jpeg"}, {"Content-Encoding": "identity"}):
        answer = httpx.post(url, content=body, headers=headers)
        assert answer.status_code == 400
        assert hint in answer.json()["error"]["message"]
    inside = {"images": [{"data": base64.b64encode(b"{}").decode()}]}
    assert hint not in httpx.post(url, json=inside).text


def test_health(demo_server):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"):
        assert httpx.get(demo_server.url + path).status_code == 200
    unknown = httpx.get(demo_server.url + "/v2/models/nobody/ready")
    assert (unknown.status_code, unknown.json()["ready"]) == (400, False)


@pytest.mark.parametrize("flag", ["--page", "--no-page"])
def test_load_balancers_get_200_at_the_root(serve, demo_repository, flag):
    server = serve(demo_repository, flag)
    found = httpx.get(server.url, headers={"user-agent": "GoogleHC/1.0"})
    assert (found.status_code, found.json()["name"]) == (200, "fovea")
    assert found.json()["version"] == version("fovea-serve")
    head = httpx.head(server.url)
    assert (head.status_code, head.content) == (200, b"")
    browser = httpx.get(server.url, headers={"accept": "text/html,*/*;q=0.8"})
    kind = "text/html" if flag == "--page" else "application/json"
    assert (browser.status_code, browser.headers["content-type"].partition(";")[0]) == (200, kind)


def test_an_image_at_a_wrong_address_is_told_the_right_one(demo_server, scene):
    for path in ("/health", "/predict/digits"):
        answer = httpx.post(demo_server.url + path, content=scene)
        error = {
            "code": "not_found",
            "message": f"POST {path}: Not Found; see /docs for the routes",
        }
        assert (answer.status_code, answer.json()) == (404, {"error": error})
    for path in ("/v1/models/digits", "/v1/models/digits/versions/1"):
        answer = httpx.post(demo_server.url + path, content=scene)
        assert answer.status_code == 405
        assert answer.json()["error"]["message"].endswith(f"; images go to POST {path}/predict")
    assert "images" not in httpx.post(demo_server.url).json()["error"]["message"]


def test_the_client_sees_the_same(demo_server, scene, demo_truth):
    with Client(demo_server.url) as client:
        assert client.ready("digits")
        prediction = client.predict("digits", scene, conf=0.4)
    found = sorted(d.class_name for d in prediction.detections)
    assert found == sorted(d["class_name"] for d in demo_truth["scene-1.jpg"])


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("image/*", "image/jpeg"),
        ("IMAGE/PNG", "image/png"),
        ("image/jpeg;q=0, application/json", "application/json"),
        ("application/json, image/jpeg;q=0.1", "application/json"),
        ("image/jpeg;q=0.5, image/png", "image/png"),
        ("image/jpeg;q=x", "application/json"),
    ],
)
def test_the_accept_header_is_weighed(url, scene, accept, kind):
    response = httpx.post(url, content=scene, headers={"Accept": accept})
    assert response.headers["content-type"] == kind
