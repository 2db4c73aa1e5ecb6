"""The HTTP surface as its users meet it."""

import base64
import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from fovea_client import Client
from fovea_preprocess.image import decode_image
from fovea_server.schemas import ErrorAnswer, PredictAnswer


@pytest.fixture
def url(demo_server) -> str:
    return demo_server.predict_url("digits")


def names(answer, index=0) -> list[str]:
    return sorted(d["class_name"] for d in answer["images"][index]["detections"])


def test_a_raw_picture_gets_its_true_digits(url, scene, demo_truth):
    answer = httpx.post(url, content=scene, headers={"Content-Type": "image/jpeg"}).json()
    PredictAnswer.model_validate(answer, strict=True)
    assert names(answer) == sorted(d["class_name"] for d in demo_truth["scene-1.jpg"])


def test_the_same_picture_in_every_wrapping(url, scene):
    raw = names(httpx.post(url, content=scene).json())
    form = httpx.post(url, files={"file": ("scene.jpg", scene)}).json()
    encoded = base64.b64encode(scene).decode()
    body = httpx.post(url, json={"images": [{"data": encoded}]}).json()
    version = httpx.post(url.replace("/predict", "/versions/1/predict"), content=scene).json()
    assert names(form) == names(body) == names(version) == raw


def test_many_pictures_answer_in_order_and_a_bad_one_fails_alone(url, scene, second_scene):
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
    # Store the picture so that undoing EXIF orientation gives the upright one back.
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
def test_an_annotated_picture_on_request(url, scene, kind):
    response = httpx.post(url, content=scene, headers={"Accept": kind})
    assert response.headers["content-type"] == kind
    drawn, plain = decode_image(response.content).pixels, decode_image(scene).pixels
    assert drawn.shape == plain.shape
    changed = np.abs(drawn.astype(int) - plain).max(axis=2) > 60
    assert 0.001 < changed.mean() < 0.3, "boxes and labels, not another picture"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/models/nobody/predict", 404, "not_found"),
        ("/v1/models/..%2F..%2Fetc/predict", 404, "not_found"),
        ("/v1/models/digits/versions/9/predict", 404, "not_found"),
        ("/v1/models/digits/versions/0/predict", 422, "invalid_request"),
        ("/v1/models/digits/predict?conf=2", 422, "invalid_option"),
        ("/v1/models/digits/predict?speed=2", 422, "invalid_option"),
        ("/nowhere", 404, "not_found"),
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
    assert status(content=scene[:-2]) == (400, "invalid_image")
    assert status(json={"images": [{"url": "http://1.1.1.1/a"}]}) == (400, "fetch_refused")
    assert status(content=scene, headers={"Content-Encoding": "gzip"}) == (400, "invalid_request")
    assert status(content=scene, headers={"X-Request-Timeout-Ms": "x"}) == (422, "invalid_option")
    assert status(content=scene, headers={"X-Request-Timeout-Ms": "0.01"}) == (
        504,
        "deadline_exceeded",
    )
    assert httpx.get(url).status_code == 405


def test_health(demo_server):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"):
        assert httpx.get(demo_server.url + path).status_code == 200
    unknown = httpx.get(demo_server.url + "/v2/models/nobody/ready")
    assert (unknown.status_code, unknown.json()["ready"]) == (400, False)


def test_openapi_describes_what_is_served(demo_server):
    spec = httpx.get(demo_server.url + "/openapi.json").json()
    predict = spec["paths"]["/v1/models/{name}/predict"]["post"]
    assert {"image/*", "multipart/form-data", "application/json"} == set(
        predict["requestBody"]["content"]
    )
    assert {"200", "400", "404", "408", "413", "422", "429", "503", "504"} <= set(
        predict["responses"]
    )
    reference = predict["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.rpartition("/")[2] in spec["components"]["schemas"]
    text = json.dumps(spec)
    for schema in {r.split('"')[0] for r in text.split('"#/components/schemas/')[1:]}:
        assert schema in spec["components"]["schemas"], schema
    docs = httpx.get(demo_server.url + "/docs")
    assert docs.status_code == 200
    assert "swagger" in docs.text.lower()


def test_the_client_sees_the_same(demo_server, scene, demo_truth):
    with Client(demo_server.url) as client:
        assert client.ready("digits")
        prediction = client.predict("digits", scene, conf=0.4)
    found = sorted(d.class_name for d in prediction.detections)
    assert found == sorted(d["class_name"] for d in demo_truth["scene-1.jpg"])


def test_a_body_over_the_limit_is_refused_while_reading(demo_repository, serve):
    server = serve(demo_repository, "--max-body-mb", "1")

    def endless():
        for _ in range(10_000):
            yield bytes(65536)

    url = server.predict_url("digits")
    with httpx.Client() as client:
        declared = client.post(url, content=bytes(2_000_000))
        assert (declared.status_code, declared.json()["error"]["code"]) == (413, "body_too_large")
    with httpx.Client() as client:
        chunked = client.post(url, content=endless())
        assert chunked.status_code == 413


def test_a_full_queue_says_when_to_come_back(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue", "4")
    url = server.predict_url("digits")
    assert httpx.post(url, files=[("f", scene)] * 5).status_code == 400, "it would never fit"
    refused, wrong = threading.Event(), []

    def insist() -> None:
        for _ in range(40):
            response = httpx.post(url, files=[("f", scene)] * 3, timeout=30)
            if response.status_code == 429:
                assert response.json()["error"]["code"] == "queue_full"
                assert int(response.headers["retry-after"]) >= 1
                refused.set()
            elif response.status_code != 200:
                wrong.append(response.text)
            if refused.is_set():
                return

    threads = [threading.Thread(target=insist) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert not wrong
    assert httpx.post(url, files=[("f", scene)] * 4).status_code == 200, "all places are free again"


def test_a_refused_body_is_not_read_for_ever(demo_server):
    def endless():
        while True:
            yield bytes(65536)

    with httpx.Client() as client:
        refused = client.post(demo_server.predict_url("nobody"), content=endless())
    assert refused.status_code == 404


def test_endless_headers_are_cut_off(demo_server):
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(10_000):
            connection.sendall(b"X-Padding: " + b"x" * 8000 + b"\r\n")

    with (
        socket.create_connection(("127.0.0.1", demo_server.port), timeout=30) as connection,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        flood(connection)


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


def test_a_client_that_goes_away_frees_its_place(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue", "32")
    url = server.predict_url("digits")
    for _ in range(8):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, files=[("f", scene)] * 32, timeout=httpx.Timeout(5, read=0.01))
        until = time.monotonic() + 10
        while httpx.post(url, files=[("f", scene)] * 30).status_code != 200:
            assert time.monotonic() < until, "the places were not given back"


def test_sigterm_finishes_what_was_accepted(demo_repository, serve, scene):
    server = serve(demo_repository)
    request = httpx.Request("POST", server.predict_url("digits"), files=[("f", scene)] * 40)
    body = request.read()
    head = f"POST {request.url.raw_path.decode()} HTTP/1.1\r\nExpect: 100-continue\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\n")
        # The word that the server has taken the request on.
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body[: len(body) // 2])
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.sendall(body[len(body) // 2 :])
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert len(json.loads(answer.read())["images"]) == 40
    assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_an_empty_repository_is_not_ready_and_says_so(tmp_path, serve):
    server = serve(tmp_path, wait=False)
    response = httpx.post(server.predict_url("digits"), content=b"x")
    assert response.status_code == 404
    assert "served models: none" in response.json()["error"]["message"]
    ready = httpx.get(server.url + "/v2/health/ready")
    assert ready.status_code == 400
    assert "there is no model in" in ready.json()["reason"]


def test_what_cannot_be_served_ends_at_once_with_a_sentence(demo_server, demo_repository, tmp_path):
    def serve(*arguments) -> str:
        command = [sys.executable, "-m", "fovea_server.cli", "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "is not a folder" in serve(tmp_path / "nowhere")
    assert "choose another with --port" in serve(demo_repository, "--port", demo_server.port)


def test_a_damaged_model_leaves_the_others_serving(demo_repository, tmp_path, serve, scene):
    repository = tmp_path / "repository"
    shutil.copytree(demo_repository, repository)
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    server = serve(repository, wait=False)
    until = time.monotonic() + 30
    while httpx.get(f"{server.url}/v2/models/digits/ready").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    broken = httpx.post(server.predict_url("broken"), content=scene)
    assert (broken.status_code, broken.json()["error"]["code"]) == (503, "model_not_ready")
    ready = httpx.get(f"{server.url}/v2/health/ready")
    assert ready.status_code == 400
    assert "broken" in ready.json()["reason"]


def test_a_head_that_is_not_recognised_serves_tensors_and_says_so(shared, tmp_path, serve):
    from fovea_engines.build import build
    from fovea_engines.plan import BuildPlan

    source = shared / "models" / "mobilenetv2.onnx"
    build(BuildPlan(source=source, name="classifier", repository=tmp_path / "repository"))
    server = serve(tmp_path / "repository")
    picture = (shared / "data" / "bus.jpg").read_bytes()
    answer = httpx.post(server.predict_url("classifier"), content=picture, timeout=30).json()
    PredictAnswer.model_validate(answer, strict=True)
    image = answer["images"][0]
    assert answer["task"] == "tensors"
    assert "serves tensors" in image["reason"]
    assert [t["shape"] for t in image["tensors"]] == [[1000]]
    drawn = httpx.post(
        server.predict_url("classifier"), content=picture, headers={"Accept": "image/png"}
    )
    assert drawn.status_code == 400
